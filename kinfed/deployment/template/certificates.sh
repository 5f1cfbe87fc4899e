#!/usr/bin/env bash
# Makes what trying out needs: an authority, a certificate of the server at ADDRESS, a secret that SuperLink and SuperExec
# share, and a key for each node.
#   ./certificates.sh [ADDRESS]     an IP address or a name of the server; 127.0.0.1 unless given
# In earnest each node makes its own key, and only keys/NAME.pub leaves it. What is there already is kept.
set -euo pipefail
umask 077
cd "$(dirname "${BASH_SOURCE[0]}")"
address=${1:-127.0.0.1}
for tool in openssl ssh-keygen; do
    command -v "$tool" >/dev/null || { echo "error: $tool is not installed" >&2; exit 2; }
done
mkdir -p certificates keys

if [ ! -e certificates/ca.crt ]; then
    openssl req -x509 -newkey rsa:3072 -nodes -sha256 -days 365 -subj "/CN=kinfed try-out authority" \
        -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign" \
        -keyout certificates/ca.key -out certificates/ca.crt 2>/dev/null
fi

if [ ! -e certificates/server.crt ] || [ "$(cat certificates/address 2>/dev/null)" != "$address" ]; then
    case $address in
        *:*) name="IP:$address" ;;
        *[!0-9.]*) name="DNS:$address" ;;
        *) name="IP:$address" ;;
    esac
    openssl req -newkey rsa:3072 -nodes -sha256 -subj "/CN=kinfed server" \
        -keyout certificates/server.key -out certificates/server.csr 2>/dev/null
    openssl x509 -req -in certificates/server.csr -CA certificates/ca.crt -CAkey certificates/ca.key -CAcreateserial \
        -sha256 -days 365 -out certificates/server.crt 2>/dev/null -extfile <(
            echo "subjectAltName=$name,IP:127.0.0.1"
            echo "basicConstraints=critical,CA:FALSE"
            echo "extendedKeyUsage=serverAuth"
        )
    rm certificates/server.csr
    echo "$address" >certificates/address
fi

[ -e certificates/superexec.secret ] || openssl rand -hex 32 >certificates/superexec.secret

for node in nodes/*.toml nodes/late/*.toml; do
    [ -e "$node" ] || continue
    name=$(basename "$node" .toml)
    [ -e "keys/$name" ] || ssh-keygen -q -t ecdsa -b 384 -N "" -C "" -f "keys/$name"
done
echo "certificates/ for $address, and keys/ of $(find keys -name '*.pub' | wc -l | tr -d ' ') nodes"
