#!/bin/sh
# Starts PostgreSQL, and creates its database first if there is none.
#
#   PGDATA             where the database is; a volume is mounted at the folder above it, never at PGDATA itself
#   PGHOST             the folder of the socket, which the image's psql uses as well
#   POSTGRES_PASSWORD  the password of POSTGRES_USER; without one, every connection is trusted
#   POSTGRES_USER      the superuser, "postgres" if not set
#   POSTGRES_DB        a database to create, the name of the user if not set
#
# Arguments are passed on to the server, such as: -c log_statement=all
set -eu

user=${POSTGRES_USER:-postgres}
database=${POSTGRES_DB:-$user}

initialise() {
    set -- --pgdata="$1" --username="$user" --encoding=UTF8 --locale=C.UTF-8 --wal-segsize=1 --no-sync
    if [ -n "${POSTGRES_PASSWORD:-}" ]; then
        method=scram-sha-256
        # Through a descriptor, so that the password is neither in a file nor in the list of processes.
        initdb "$@" --auth-local=trust --auth-host=$method --pwfile=/dev/fd/3 3<<PASSWORD
$POSTGRES_PASSWORD
PASSWORD
    else
        method=trust
        initdb "$@" --auth=$method
    fi
    echo "host all all all $method" >>"$unfinished/pg_hba.conf"
    # A server in this mode opens no port: it executes one statement and exits. As with initdb above, nothing is lost if
    # the machine stops now, so it does not wait for the disk either (-F).
    if [ "$database" != postgres ]; then
        echo "CREATE DATABASE \"$database\"" | postgres --single -j -F -D "$unfinished" postgres
    fi
}

# A container that is killed during initialisation must not leave a database that looks complete, so it is created under
# a temporary name and renamed.
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    unfinished="$PGDATA.unfinished"
    rm -rf "$unfinished"
    initialise "$unfinished"
    mv --no-target-directory "$unfinished" "$PGDATA"
fi

if [ "${1:-}" = postgres ]; then
    shift
fi

# Small sizes, because the machine runs whole clusters.
exec postgres -D "$PGDATA" \
    -c listen_addresses=0.0.0.0 \
    -c unix_socket_directories="$PGHOST" \
    -c shared_buffers=16MB \
    -c max_connections=50 \
    -c min_wal_size=8MB \
    -c max_wal_size=64MB \
    -c autovacuum_max_workers=1 \
    -c jit=off \
    "$@"
