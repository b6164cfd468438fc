//! Other people's servers on host `b`, and their clients on host `a`: OpenSSH, rsync, PostgreSQL,
//! Redis. They are found in `PATH` and where Debian keeps servers.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use haul_netem::Rng;

use super::bench::{Bench, POSTGRES_PORT, REDIS_PORT};
use crate::compare::programs::in_path;
use crate::compare::runner::{Running, Stop};
use crate::noise::noise;
use crate::sshd::{self, Sshd};

/// Time for a server to start.
const READY: Duration = Duration::from_secs(20);
/// Time limit of a run.
const LIMIT: Duration = Duration::from_secs(120);
/// Files of the rsync measurement are in so many folders.
const FOLDERS: usize = 10;

/// Why something cannot be measured here.
#[derive(Debug, Clone)]
pub(super) struct Missing(pub(super) String);

/// The servers that have been started.
#[derive(Debug)]
pub(super) struct Peers<'a> {
    folder: &'a Folder,
    pub(super) ssh: Result<Ssh, Missing>,
    pub(super) postgres: Result<Postgres, Missing>,
    pub(super) redis: Result<Redis, Missing>,
}

#[derive(Debug)]
pub(super) struct Ssh {
    scp: PathBuf,
    /// The file for `ssh -F`.
    config: PathBuf,
    rsync: Result<PathBuf, Missing>,
    _server: Sshd,
}

#[derive(Debug)]
pub(super) struct Postgres {
    pgbench: PathBuf,
    _server: Running,
}

#[derive(Debug)]
pub(super) struct Redis {
    benchmark: PathBuf,
    _server: Running,
}

/// A folder that every user can enter, removed with this value: PostgreSQL does not run as root.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn make() -> Result<Self> {
        let pid = std::process::id();
        let path = std::env::temp_dir().join(format!("haul-lab-gateways-{pid}"));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let folder = Self(path);
        std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o755))?;
        Ok(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A remaining file is harmless.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Where a program is, or that it is not installed.
fn find(name: &str) -> Result<PathBuf, Missing> {
    let server = Path::new("/usr/sbin").join(name);
    let found = in_path(name).or_else(|| server.is_file().then_some(server));
    found
        .or_else(|| postgres_program(name))
        .ok_or_else(|| Missing(format!("not installed: {name}")))
}

/// The newest of Debian's versions beside each other.
fn postgres_program(name: &str) -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let programs = versions
        .flatten()
        .map(|version| version.path().join("bin").join(name));
    programs.filter(|program| program.is_file()).max()
}

/// A command line.
fn line(program: &Path, words: &str) -> Vec<OsString> {
    let words = words.split_whitespace().map(OsString::from);
    [program.into()].into_iter().chain(words).collect()
}

/// Missing programs are recorded; a signal or a failure ends the start.
fn kept<T>(found: Result<Result<T, Missing>, Stop>) -> Result<Result<T, Missing>, Stop> {
    match found {
        Err(Stop::Failed(error)) => Ok(Err(Missing(format!(
            "does not start: {}",
            crate::line(&error)
        )))),
        found => found,
    }
}

impl<'a> Peers<'a> {
    /// Starts the installed servers.
    pub(super) fn start(bench: &Bench<'_>, folder: &'a Folder) -> Result<Self, Stop> {
        Ok(Self {
            ssh: kept(Ssh::start(bench, &folder.0))?,
            postgres: kept(Postgres::start(bench, &folder.0))?,
            redis: kept(Redis::start(bench, &folder.0))?,
            folder,
        })
    }

    /// A file and a tree of files with bytes that do not compress.
    pub(super) fn make_files(&self, file_len: usize, files: usize, len: usize) -> Result<()> {
        let mut rng = Rng::new(1);
        std::fs::write(self.file(), noise(&mut rng, file_len))?;
        for at in 0..files {
            let folder = self.tree().join((at % FOLDERS).to_string());
            std::fs::create_dir_all(&folder)?;
            std::fs::write(folder.join(at.to_string()), noise(&mut rng, len))?;
        }
        Ok(())
    }

    fn file(&self) -> PathBuf {
        self.folder.0.join("file")
    }

    fn tree(&self) -> PathBuf {
        self.folder.0.join("tree")
    }

    /// `scp` of the file from `b`; its time.
    pub(super) fn scp(&self, bench: &Bench<'_>, ssh: &Ssh, target: &str) -> Result<f64, Stop> {
        let to = self.folder.0.join("got");
        let mut command = vec![ssh.scp.clone().into_os_string(), "-q".into()];
        command.extend(["-F".into(), ssh.config.clone().into()]);
        command.push(format!("{target}:{}", self.file().display()).into());
        command.push(to.clone().into());
        let (_, time) = run(bench, "a", "scp", &command)?;
        let same = std::fs::read(&to).ok() == std::fs::read(self.file()).ok();
        // The next one must not find it.
        std::fs::remove_file(&to).context("scp has left no file")?;
        check(same, "scp's file differs")?;
        Ok(time)
    }

    /// `rsync` of the tree from `b` by `ssh`; its time.
    pub(super) fn rsync(&self, bench: &Bench<'_>, ssh: &Ssh, target: &str) -> Result<f64, Stop> {
        let rsync = ssh
            .rsync
            .as_ref()
            .map_err(|missing| anyhow!(missing.0.clone()))?;
        let to = self.folder.0.join("copy");
        // sshd runs commands with an environment of its own.
        let libraries = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let command = vec![
            rsync.clone().into_os_string(),
            "-a".into(),
            "-e".into(),
            format!("ssh -F {}", ssh.config.display()).into(),
            "--rsync-path".into(),
            format!(
                "env LD_LIBRARY_PATH={} {}",
                libraries.display(),
                rsync.display()
            )
            .into(),
            format!("{target}:{}/", self.tree().display()).into(),
            to.clone().into(),
        ];
        let (_, time) = run(bench, "a", "rsync", &command)?;
        let same = same_trees(&self.tree(), &to);
        let _ = std::fs::remove_dir_all(&to);
        check(same?, "rsync's files differ")?;
        Ok(time)
    }
}

fn check(is_right: bool, why: &'static str) -> Result<(), Stop> {
    if is_right {
        Ok(())
    } else {
        Err(Stop::Failed(anyhow!(why)))
    }
}

/// Whether every file of one tree is in the other, and is the same there.
fn same_trees(one: &Path, other: &Path) -> Result<bool> {
    for entry in std::fs::read_dir(one)?.flatten() {
        let (from, to) = (entry.path(), other.join(entry.file_name()));
        let same = if from.is_dir() {
            same_trees(&from, &to)?
        } else {
            std::fs::read(&to).ok() == Some(std::fs::read(&from)?)
        };
        if !same {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Runs a client to its end; returns its output and its time.
fn run(
    bench: &Bench<'_>,
    host: &str,
    who: &str,
    command: &[OsString],
) -> Result<(String, f64), Stop> {
    let begin = Instant::now();
    let mut client = bench.spawn(host, command)?;
    let ended = bench.runner.wait(&mut client, LIMIT)?;
    let time = begin.elapsed().as_secs_f64();
    if !ended.status.success() {
        return Err(Stop::Failed(client.failure(who, &ended)));
    }
    Ok((client.stdout(), time))
}

impl Ssh {
    fn start(bench: &Bench<'_>, folder: &Path) -> Result<Result<Self, Missing>, Stop> {
        if let Some(why) = sshd::missing() {
            return Ok(Err(Missing(why)));
        }
        let scp = match find("scp") {
            Ok(scp) => scp,
            Err(missing) => return Ok(Err(missing)),
        };
        let server = Sshd::start(bench.runner, &bench.lab, "b", folder)?;
        Ok(Ok(Self {
            scp,
            config: sshd::client_config(folder),
            rsync: find("rsync"),
            _server: server,
        }))
    }

    /// Whether rsync can be measured, too.
    pub(super) fn rsync(&self) -> Result<(), Missing> {
        self.rsync.as_ref().map(|_| ()).map_err(Clone::clone)
    }
}

impl Postgres {
    fn start(bench: &Bench<'_>, folder: &Path) -> Result<Result<Self, Missing>, Stop> {
        let (initdb, postgres, pgbench) = match (find("initdb"), find("postgres"), find("pgbench"))
        {
            (Ok(initdb), Ok(postgres), Ok(pgbench)) => (initdb, postgres, pgbench),
            (Err(missing), ..) | (_, Err(missing), _) | (.., Err(missing)) => {
                return Ok(Err(missing));
            }
        };
        if !rustix::process::getuid().is_root() {
            return Ok(Err(Missing(
                "needs root: postgres under another user".into(),
            )));
        }
        let data = folder.join("postgres");
        std::fs::create_dir(&data).context("cannot make the folder of postgres")?;
        // The user `nobody` suffices: it runs in the lab only.
        std::os::unix::fs::chown(&data, Some(NOBODY), Some(NOBODY))
            .context("cannot give the folder of postgres away")?;
        let data = data.display();
        let mut command = as_nobody();
        command.extend(line(
            &initdb,
            &format!("-D {data} -U bench --auth=trust --no-sync -E UTF8 --locale=C"),
        ));
        run(bench, "b", "initdb", &command)?;
        // By default it accepts only clients on the same host.
        std::fs::write(
            format!("{data}/pg_hba.conf"),
            "host all all 0.0.0.0/0 trust\n",
        )
        .context("cannot write pg_hba.conf")?;
        let mut command = as_nobody();
        command.extend(line(
            &postgres,
            &format!("-D {data} -p {POSTGRES_PORT} -c fsync=off -c listen_addresses=*"),
        ));
        command.extend(["-c".into(), "unix_socket_directories=".into()]);
        let server = bench.serve(&command, POSTGRES_PORT, READY)?;
        let address = bench.address("b")?;
        let words = format!("-i -q -s 1 -h {address} -p {POSTGRES_PORT} -U bench postgres");
        run(bench, "b", "pgbench", &line(&pgbench, &words))?;
        Ok(Ok(Self {
            pgbench,
            _server: server,
        }))
    }

    /// The latency of a transaction of `pgbench -N -c 4`, which has five statements. `-N` leaves
    /// out the rows that all clients change: waiting for each other is no part of the path.
    pub(super) fn transactions(
        &self,
        bench: &Bench<'_>,
        target: &str,
        count: u32,
    ) -> Result<f64, Stop> {
        let words = format!(
            "-n -N -c 4 -t {count} --random-seed=1 -h {target} -p {POSTGRES_PORT} -U bench postgres"
        );
        let (said, _) = run(bench, "a", "pgbench", &line(&self.pgbench, &words))?;
        Ok(latency(&said)?)
    }
}

/// The user that has no rights.
const NOBODY: u32 = 65534;

/// The prefix that runs a command as that user.
fn as_nobody() -> Vec<OsString> {
    line(
        Path::new("setpriv"),
        &format!("--reuid={NOBODY} --regid={NOBODY} --clear-groups"),
    )
}

/// `latency average = 12.5 ms` of what `pgbench` prints, s.
fn latency(said: &str) -> Result<f64> {
    let found = said.lines().find_map(|line| {
        let value = line
            .strip_prefix("latency average = ")?
            .strip_suffix(" ms")?;
        value.parse::<f64>().ok()
    });
    Ok(found.context("cannot understand pgbench")? / 1000.0)
}

/// The server of Redis. Debian's redis-tools has the program without the service: it checks files,
/// or serves where that is its name.
fn redis_server(folder: &Path) -> Result<PathBuf, Missing> {
    find("redis-server").or_else(|missing| {
        let program = find("redis-check-rdb").map_err(|_| missing.clone())?;
        let name = folder.join("redis-server");
        let linked = std::os::unix::fs::symlink(program, &name);
        linked.map(|()| name).map_err(|_| missing)
    })
}

impl Redis {
    fn start(bench: &Bench<'_>, folder: &Path) -> Result<Result<Self, Missing>, Stop> {
        let (server, benchmark) = match (redis_server(folder), find("redis-benchmark")) {
            (Ok(server), Ok(benchmark)) => (server, benchmark),
            (Err(missing), _) | (_, Err(missing)) => return Ok(Err(missing)),
        };
        let words = format!(
            "--port {REDIS_PORT} --bind 0.0.0.0 --protected-mode no --dir {} --save",
            folder.display()
        );
        let mut command = line(&server, &words);
        command.push("".into());
        let server = bench.serve(&command, REDIS_PORT, READY)?;
        Ok(Ok(Self {
            benchmark,
            _server: server,
        }))
    }

    /// The average latency of `redis-benchmark -t get` of so many clients.
    pub(super) fn gets(
        &self,
        bench: &Bench<'_>,
        target: &str,
        clients: u32,
        count: u32,
    ) -> Result<f64, Stop> {
        let words = format!("-h {target} -p {REDIS_PORT} -c {clients} -n {count} -t get --csv");
        let (said, _) = run(
            bench,
            "a",
            "redis-benchmark",
            &line(&self.benchmark, &words),
        )?;
        Ok(average(&said)?)
    }
}

/// The third column of the row of GET in what `redis-benchmark --csv` prints, s.
fn average(said: &str) -> Result<f64> {
    let mut rows = said
        .lines()
        .map(|line| line.split(',').map(|cell| cell.trim_matches('"')));
    let head: Vec<&str> = rows
        .next()
        .context("redis-benchmark printed nothing")?
        .collect();
    ensure!(
        head.get(2) == Some(&"avg_latency_ms"),
        "cannot understand redis-benchmark: 6.0 or newer is needed"
    );
    for row in rows {
        let row: Vec<&str> = row.collect();
        if let ["GET", _, value, ..] = row.as_slice() {
            return Ok(value
                .parse::<f64>()
                .context("cannot understand redis-benchmark")?
                / 1000.0);
        }
    }
    bail!("redis-benchmark printed no row of GET")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_print_is_understood() {
        let said =
            "transaction type: <builtin: simple update>\nlatency average = 401.250 ms\ntps = 9.9\n";
        assert!((latency(said).unwrap() - 0.401_25).abs() < 1e-9);
        assert!(latency("tps = 9.9\n").is_err());
        let said = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\"\n\"GET\",\"12.40\",\"80.500\",\"80.1\"\n";
        assert!((average(said).unwrap() - 0.0805).abs() < 1e-9);
        assert!(average("\"GET\",\"12.40\"\n").is_err());
    }

    #[test]
    fn trees_are_the_same_only_with_every_byte() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        for tree in [&one, &other] {
            std::fs::create_dir_all(tree.join("1")).unwrap();
            std::fs::write(tree.join("1/file"), "bytes").unwrap();
        }
        assert!(same_trees(&one, &other).unwrap());
        std::fs::write(other.join("1/file"), "bytes?").unwrap();
        assert!(!same_trees(&one, &other).unwrap());
        std::fs::remove_file(other.join("1/file")).unwrap();
        assert!(!same_trees(&one, &other).unwrap());
    }
}
