#!/usr/bin/env bash
# Makes what trying out needs: an authority, a certificate of the server at ADDRESS, a secret that SuperLink and SuperExec
# share, and a key for each node.
#   ./certificates.sh [ADDRESS]     an IP address or a name of the server; the last one, or 127.0.0.1, unless given
# In earnest each node makes its own key, and only keys/NAME.pub leaves it. What is there already is kept. A certificate
# that was made here is made anew when it has expired or is for another address; one of your own authority never is.
set -euo pipefail
umask 077
cd "$(dirname "${BASH_SOURCE[0]}")"
address=${1:-$(cat certificates/address 2>/dev/null || echo 127.0.0.1)}
authority="kinfed try-out authority"
fail() { echo "error: $*" >&2; exit 2; }
for tool in openssl ssh-keygen; do command -v "$tool" >/dev/null || fail "$tool is not installed"; done
mkdir -p certificates keys

if [ -e certificates/ca.crt ] && ! openssl x509 -checkend 0 -noout -in certificates/ca.crt >/dev/null; then
    fail "certificates/ca.crt has expired: remove it, run this again, and give nodes the new ca.crt"
fi

if [ ! -e certificates/ca.crt ]; then
    openssl req -x509 -newkey rsa:3072 -nodes -sha256 -days 365 -subj "/CN=$authority" \
        -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign" \
        -keyout certificates/ca.key -out certificates/ca.crt 2>/dev/null
fi

is_usable() { # the certificate that is there: of another authority, or for this address and still valid
    openssl x509 -noout -issuer -in certificates/server.crt | grep -q "$authority" || return 0
    [ "$(cat certificates/address 2>/dev/null)" = "$address" ] &&
        openssl verify -CAfile certificates/ca.crt certificates/server.crt >/dev/null 2>&1
}

if [ ! -e certificates/server.crt ] || ! is_usable; then
    [ -e certificates/ca.key ] || fail "certificates/ca.key is needed to make a certificate for $address: put it back"
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
