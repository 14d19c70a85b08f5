# Part of boot.sh: MariaDB on a socket, slurmdbd, the account and its users. In memory a fresh database takes a second.
# It runs as the user slurm, whom it then takes for its owner: slurmdbd logs in without a password.

# Asks until the command succeeds: at most 60 s.
wait_until() {
  local end=$((SECONDS + 60))
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || { echo "gave up after 60 s: $*"; return 1; }
    sleep 0.02
  done
}

slurmdbd_listens() { (exec 3<>/dev/tcp/ctl/6819); }

mark "database"
mkdir -p /var/lib/mysql
mount -t tmpfs -o mode=0755 tmpfs /var/lib/mysql   # the machine may have a database of its own there
chown slurm:slurm /var/lib/mysql
install -d -o slurm -g slurm /run/mysqld
ln -s mysqld /run/mariadbd   # where newer client libraries look
mariadb-install-db --no-defaults --user=slurm --datadir=/var/lib/mysql \
  --auth-root-authentication-method=socket --skip-test-db >"$BOX/log/mariadb-install-db.log" 2>&1
mariadbd --no-defaults --user=slurm --datadir=/var/lib/mysql --socket=/run/mysqld/mysqld.sock --skip-networking \
  --pid-file=/run/mysqld/mysqld.pid --innodb-buffer-pool-size=64M --innodb-log-file-size=16M \
  --innodb-flush-log-at-trx-commit=0 --innodb-lock-wait-timeout=900 --max-allowed-packet=64M \
  >"$BOX/log/mariadbd.log" 2>&1 &
# slurmdbd that finds no server looks again only after 5 s; one that finds no database breaks with MariaDB 11.8.9.
wait_until mariadb --no-defaults --socket=/run/mysqld/mysqld.sock --execute="create database slurm_acct_db"
mark "slurmdbd"
chown slurm:slurm /etc/slurm/slurmdbd.conf   # it refuses a file that others may read or write
chmod 0600 /etc/slurm/slurmdbd.conf
setpriv --reuid=slurm --regid=slurm --clear-groups slurmdbd
wait_until slurmdbd_listens
mark "users"
sacctmgr -i load file="$BOX/etc/associations" >"$BOX/log/sacctmgr.log" 2>&1
