#!/usr/bin/env bash
# Tries the federation on this machine: TLS, authenticated nodes, a SuperNode for each client, one run. All on loopback.
#   ./try.sh               all of this: up, run, late, down
#   ./try.sh up            starts the server and the SuperNodes of nodes/
#   ./try.sh server        starts SuperLink, its gate and SuperExec, or those that are not running
#   ./try.sh node NAME     starts one SuperNode; its key is registered if it is not yet
#   ./try.sh run [OUT]     a run, written to OUT (runs/first), until it ends
#   ./try.sh down          stops all that was started
# Logs are in .flower/log.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./offline.sh
export FLWR_HOME="$PWD/.flower"                          # Flower's own files
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.5             # seconds; all processes are on this machine
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"           # all nodes share these cores
mkdir -p .flower/log .flower/pid .flower/registered

fail() { echo "error: $*" >&2; exit 2; }

free_port() { python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

start() { # NAME COMMAND...: in a process group of its own
    local name=$1; shift
    setsid "$@" >>".flower/log/$name.log" 2>&1 </dev/null &
    echo $! >".flower/pid/$name"
}

has_members() { # GROUP: of processes; one that has ended and was not waited for does not count
    ps -eo pgid=,stat= | awk -v group="$1" '$1 == group && $2 !~ /^Z/ { found = 1 } END { exit !found }'
}

is_running() { [ -e ".flower/pid/$1" ] && has_members "$(cat ".flower/pid/$1")"; }

superlink() {
    [ -e .flower/port ] || free_port >.flower/port
    local port; port=$(cat .flower/port)
    printf '[superlink.here]\naddress = "127.0.0.1:%s"\nroot-certificates = "%s"\n' \
        "$port" "$PWD/certificates/ca.crt" >.flower/config.toml
    start superlink flower-superlink --host 127.0.0.1 --port "$port" --database "$PWD/.flower/state.db" \
        --ssl-ca-certfile certificates/ca.crt --ssl-certfile certificates/server.crt \
        --ssl-keyfile certificates/server.key --enable-supernode-auth --isolation process \
        --superexec-auth-secret-file certificates/superexec.secret
    await superlink "$port"
}

gate() { # what nodes connect to: SuperLink's own port serves more than they may ask
    [ -e .flower/gate ] || free_port >.flower/gate
    start gate kinfed deploy gate --host 127.0.0.1 --port "$(cat .flower/gate)" \
        --superlink "127.0.0.1:$(cat .flower/port)"
    await gate "$(cat .flower/gate)"
}

await() { # NAME PORT: until a process listens
    for _ in $(seq 300); do
        (: <"/dev/tcp/127.0.0.1/$2") 2>/dev/null && return
        is_running "$1" || break
        sleep 0.2
    done
    tail -5 ".flower/log/$1.log" >&2
    fail "$1 did not start: see .flower/log/$1.log"
}

server() {
    for tool in flower-superlink flower-superexec flower-supernode flwr kinfed python; do
        command -v "$tool" >/dev/null || fail "$tool is not found: activate the environment that kinfed[flower] is in"
    done
    for tool in awk ps setsid; do command -v "$tool" >/dev/null || fail "$tool is not installed"; done
    [ -e certificates/superexec.secret ] || ./certificates.sh
    is_running superlink || superlink
    is_running gate || gate
    is_running superexec || start superexec flower-superexec \
        --runtime-api-address "127.0.0.1:$(cat .flower/port)" --root-certificates certificates/ca.crt \
        --superexec-auth-secret-file certificates/superexec.secret
}

node() { # NAME
    local name=$1 settings=nodes/$1.toml
    [ -e "$settings" ] || settings=nodes/late/$name.toml
    [ -e "$settings" ] || fail "there is no nodes/$name.toml"
    ! is_running "$name" || fail "$name is running"
    [ -e "keys/$name" ] || ./certificates.sh
    if [ ! -e ".flower/registered/$name" ]; then
        flwr supernode register "keys/$name.pub" here --name "$name" >>.flower/log/register.log 2>&1 ||
            { tail -5 .flower/log/register.log >&2; fail "the key of $name could not be registered"; }
        touch ".flower/registered/$name"
    fi
    [ ! -e ".flower/log/$name.log" ] || mv ".flower/log/$name.log" ".flower/log/$name.before.log"
    start "$name" bash -c 'until "$@"; do sleep 10; done' again flower-supernode \
        --superlink "127.0.0.1:$(cat .flower/gate)" --root-certificates certificates/ca.crt \
        --auth-supernode-private-key "keys/$name" --node-config "$settings" --port "$(free_port)"
}

greet() { # NAME: says whether SuperLink has admitted the node; one that was killed counts as connected for up to a minute
    local log=.flower/log/$1.log
    for _ in $(seq 300); do
        ! grep -q "SuperNode ID" "$log" || { echo "$1 started"; return; }
        ! grep -q "Exit Code" "$log" || break
        is_running "$1" || fail "$1 did not start: see $log"
        sleep 0.2
    done
    echo "$1 is not admitted yet, and tries again every 10 s: see $log"
}

up() {
    ./certificates.sh
    server
    for path in nodes/*.toml; do node "$(basename "$path" .toml)"; done
    for path in nodes/*.toml; do greet "$(basename "$path" .toml)"; done
}

run() { # [OUT]
    local out=${1:-runs/first}
    touch .flower/began
    flwr run . here --stream --run-config "out=\"$out\"" || true  # Flower's exit code does not say whether the run succeeded
    [ "$out/summary.json" -nt .flower/began ] || fail "the run did not come to its end: see .flower/log"
    cat "$out/summary.json"
}

late() { # starts the late-joining nodes once a round is over
    ls nodes/late/*.toml >/dev/null 2>&1 || return 0
    until [ -e runs/first/rounds.csv ] && [ "$(wc -l <runs/first/rounds.csv)" -gt 1 ]; do sleep 1; done
    for path in nodes/late/*.toml; do node "$(basename "$path" .toml)"; done
    for path in nodes/late/*.toml; do greet "$(basename "$path" .toml)"; done
}

stop() { # NAME...: with all that they started
    local name pid
    for name; do
        [ ! -e ".flower/pid/$name" ] || kill -TERM -- "-$(cat ".flower/pid/$name")" 2>/dev/null || true
    done
    for name; do
        [ -e ".flower/pid/$name" ] || continue
        pid=$(cat ".flower/pid/$name")
        for _ in $(seq 50); do has_members "$pid" || break; sleep 0.1; done
        kill -KILL -- "-$pid" 2>/dev/null || true
        rm ".flower/pid/$name"
    done
}

down() { # nodes first: they sign off as long as SuperLink is there, and are admitted again at once
    local path nodes=()
    for path in .flower/pid/*; do
        case $path in */superlink | */superexec | */gate) ;; *) nodes+=("$(basename "$path")") ;; esac
    done
    stop "${nodes[@]}"
    stop superexec gate superlink
}

case ${1:-all} in
    all) trap down EXIT; up; late & run; kill $! 2>/dev/null || true ;;
    up) up ;;
    node) node "${2:?wanted ./try.sh node NAME}"; greet "$2" ;;
    run) run "${2:-}" ;;
    server) server ;;
    down) down ;;
    *) sed -n '2,9s/^# //p' "$0"; exit 2 ;;
esac
