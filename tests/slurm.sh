#!/usr/bin/env bash
# A real Slurm of one node on this machine, for tests: slurm.sh start DIR, slurm.sh stop DIR; SLURM_CONF=DIR/slurm.conf for its commands.
# Needs root and Debian's slurm-wlm and munge (apt-get install -y --no-install-recommends slurm-wlm munge). Listens on loopback names of this host only.
set -u
what=${1:?start or stop}; dir=$(mkdir -p "${2:?a folder}" && cd "$2" && pwd)
case $what in
start)
  mkdir -p "$dir/state" "$dir/spool" "$dir/log"; chmod 755 "$dir"
  host=$(hostname -s); cores=$(nproc --all); memory=$(awk '/MemTotal/ {print int($2 / 1024 * .8)}' /proc/meminfo)
  mkdir -p /run/munge; chown munge:munge /run/munge
  [ -s /etc/munge/munge.key ] || { dd if=/dev/urandom of=/etc/munge/munge.key bs=128 count=1 2>/dev/null; chown munge:munge /etc/munge/munge.key; chmod 400 /etc/munge/munge.key; }
  munge -n >/dev/null 2>&1 || { su munge -s /bin/sh -c "/usr/sbin/munged --pid-file=/run/munge/munged.pid"; touch "$dir/own_munged"; }
  cat > "$dir/slurm.conf" <<CONF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
AuthType=auth/munge
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd.log
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MailProg=/bin/true
KillWait=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cores RealMemory=$memory State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
  export SLURM_CONF=$dir/slurm.conf
  slurmctld; slurmd
  for _ in $(seq 40); do [ "$(sinfo -h -o %t 2>/dev/null)" = idle ] && break; sleep .25; done
  sinfo ;;
stop)
  export SLURM_CONF=$dir/slurm.conf
  scancel --quiet --user="$(id -un)" 2>/dev/null
  for _ in $(seq 60); do [ -z "$(squeue -h 2>/dev/null)" ] && break; sleep .25; done
  for daemon in slurmd slurmctld; do
    [ -s "$dir/$daemon.pid" ] || continue
    pid=$(cat "$dir/$daemon.pid"); kill "$pid"
    for _ in $(seq 40); do kill -0 "$pid" 2>/dev/null || break; sleep .25; done
    kill -9 "$pid" 2>/dev/null
  done
  [ -e "$dir/own_munged" ] && kill "$(cat /run/munge/munged.pid)"
  rm -f "$dir/own_munged" ;;
esac
