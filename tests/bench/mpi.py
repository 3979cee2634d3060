#!/usr/bin/env python3
"""mpi.py PROGRAM [--hosts N] [--per-host N] [--rounds N]: collectives over MPI against gloo, on hosts that are network namespaces.

The hosts are joined by a bridge (two by it alone: veth), and mpirun enters them in the place of ssh. Needs root, iproute2 and Open MPI.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile


class Hosts:
    """Network namespaces with addresses, in a namespace of their own for the bridge."""

    def __init__(self, count):
        self.prefix = f"fsdpmpi{os.getpid()}"
        self.names = [f"{self.prefix}h{i}" for i in range(count)]
        self.addresses = [f"10.78.0.{i + 1}" for i in range(count)]

    def __enter__(self):
        hub = f"{self.prefix}hub"
        commands = [f"ip netns add {hub}", f"ip -n {hub} link add bridge type bridge", f"ip -n {hub} link set bridge up"]
        for i, (name, address) in enumerate(zip(self.names, self.addresses)):
            commands += [f"ip netns add {name}", f"ip -n {name} link add eth0 type veth peer name port{i} netns {hub}",
                         f"ip -n {hub} link set port{i} master bridge up", f"ip -n {name} addr add {address}/24 dev eth0",
                         f"ip -n {name} link set eth0 up", f"ip -n {name} link set lo up"]
        try:
            for command in commands:
                subprocess.run(command.split(), check=True)
        except Exception:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in [*self.names, f"{self.prefix}hub"]:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def on(self, host, command):
        """The command that runs another on a host, which has a name of its own."""
        return ["ip", "netns", "exec", self.names[host], "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"',
                self.addresses[host].replace(".", "-"), *command]

    def agent(self, folder):
        """What mpirun takes for ssh: ADDRESS COMMAND..."""
        path = pathlib.Path(folder) / "agent"
        path.write_text("#!/bin/sh\n" + f'name={self.prefix}h$((${{1##*.}} - 1)); shift\n' +
                        'exec ip netns exec "$name" unshare --uts sh -c "hostname $name; $*"\n')
        path.chmod(0o755)
        return str(path)


def mpirun(hosts, folder, per_host, command, options=()):
    """The command that runs another in `per_host` processes of each host."""
    slots = ",".join(f"{address}:{per_host}" for address in hosts.addresses)
    return hosts.on(0, ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "plm_rsh_agent", hosts.agent(folder),
                        "--host", slots, "-n", str(per_host * len(hosts.addresses)), "-x", f"MASTER_ADDR={hosts.addresses[0]}",
                        "-x", "OMP_NUM_THREADS=1", *options, *command])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", help="build/bin/mpi_collectives")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--per-host", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=31)
    arguments = parser.parse_args()
    with Hosts(arguments.hosts) as hosts, tempfile.TemporaryDirectory() as folder:
        return subprocess.run(mpirun(hosts, folder, arguments.per_host, [str(pathlib.Path(arguments.program).resolve()), str(arguments.rounds)])).returncode


if __name__ == "__main__":
    sys.exit(main())
