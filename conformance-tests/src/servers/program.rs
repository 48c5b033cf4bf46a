//! Server programs of this machine: where they are, how their data is laid, how they are started.

use std::ffi::OsString;
use std::fs;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use super::process::Identity;
use super::{Error, Kind, SteppedClock};

/// The database that a MariaDB server has for tests.
pub(super) const DATABASE: &str = "lock_test";

/// How a server is to run.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub(super) kind: Kind,
    /// Whether a write that was answered survives a crash of the machine.
    pub(super) durable: bool,
    pub(super) settings: Vec<(String, String)>,
    /// The wall clock that it sees, where it is not the machine's. For programs only.
    pub(super) clock: Option<SteppedClock>,
}

impl Setup {
    /// The settings as words of the command line, wherever the server runs. ZooKeeper takes its own from a file.
    pub(super) fn words(&self) -> Vec<String> {
        let durable = self.durable;
        let own: &[(&str, &str)] = match self.kind {
            Kind::Postgres if durable => &[("max_connections", "200")],
            Kind::Postgres => &[
                ("max_connections", "200"),
                ("fsync", "off"),
                ("synchronous_commit", "off"),
                ("full_page_writes", "off"),
            ],
            Kind::MariaDb if durable => &[],
            // Written at each commit, so that a killed server loses nothing; forced to the disk now and then.
            Kind::MariaDb => &[
                ("innodb-flush-log-at-trx-commit", "2"),
                ("innodb-doublewrite", "0"),
            ],
            Kind::Redis if durable => &[("appendonly", "yes"), ("appendfsync", "always")],
            Kind::Redis => &[("save", "")],
            Kind::Etcd if !durable => &[("unsafe-no-fsync", "true")],
            Kind::Etcd | Kind::ZooKeeper => &[],
        };
        let given = self
            .settings
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        let all = own.iter().copied().chain(given);
        match self.kind {
            Kind::Postgres => all
                .flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")])
                .collect(),
            Kind::Redis => all
                .flat_map(|(name, value)| [format!("--{name}"), value.to_owned()])
                .collect(),
            Kind::MariaDb | Kind::Etcd => all
                .map(|(name, value)| format!("--{name}={value}"))
                .collect(),
            Kind::ZooKeeper => Vec::new(),
        }
    }
}

/// A server program on this machine.
#[derive(Debug, Clone)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) version: String,
}

impl Program {
    /// Looks for the program in `PATH` and in the folders that distributions use.
    pub(super) fn find(kind: Kind) -> Option<Self> {
        if kind == Kind::ZooKeeper {
            // The jar of that name has a link beside it that tells the version.
            let named = fs::read_dir(JARS).ok()?.flatten();
            let version = named.filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let version = name.strip_prefix("zookeeper-")?.strip_suffix(".jar")?;
                version
                    .starts_with(|c: char| c.is_ascii_digit())
                    .then(|| version.to_owned())
            });
            return Some(Self {
                version: version.max()?,
                path: find_file("java")?,
            });
        }
        let mut path = find_file(match kind {
            Kind::Postgres => "postgres",
            Kind::MariaDb => "mariadbd",
            Kind::Redis => "redis-server",
            Kind::Etcd | Kind::ZooKeeper => "etcd",
        })?;
        if kind == Kind::Postgres {
            // A link in PATH leads to the folder that has its siblings. (Redis looks at the name it is called by.)
            path = fs::canonicalize(path).ok()?;
        }
        let out = Command::new(&path).arg("--version").output().ok()?;
        let version = version(&String::from_utf8_lossy(&out.stdout))?;
        Some(Self { path, version })
    }

    /// A program of the same package.
    fn sibling(&self, name: &str) -> Option<PathBuf> {
        let beside = self.path.with_file_name(name);
        if beside.is_file() {
            Some(beside)
        } else {
            find_file(name)
        }
    }

    /// Lays what the server needs into its folder.
    pub(super) fn prepare(
        &self,
        setup: &Setup,
        folder: &Path,
        identity: Option<Identity>,
    ) -> Result<(), Error> {
        let kind = setup.kind;
        let failed = |what: &'static str| Error::io(kind, what);
        let data = folder.join("data");
        let template = |maker: &str, words: &str| {
            let maker = self.sibling(maker).ok_or_else(|| {
                Error::missing(
                    kind,
                    format!("{maker} is not beside {}", self.path.display()),
                )
            })?;
            let name = format!("{kind}-{}", self.version);
            from_template(kind, &name, &data, identity, &maker, words)
        };
        match kind {
            Kind::Postgres => template(
                "initdb",
                "-U postgres -A trust -E UTF8 --locale=C --no-sync --pgdata",
            ),
            Kind::MariaDb => {
                make_folder(&folder.join("tmp"), identity).map_err(failed("make its folder"))?;
                let init = format!("CREATE DATABASE IF NOT EXISTS {DATABASE};\n");
                fs::write(folder.join("init.sql"), init).map_err(failed("write init.sql"))?;
                template(
                    "mariadb-install-db",
                    "--no-defaults --auth-root-authentication-method=normal --skip-test-db --datadir",
                )
            }
            Kind::Redis | Kind::Etcd | Kind::ZooKeeper => {
                make_folder(&data, identity).map_err(failed("make its folder"))
            }
        }
    }

    /// The words that start the server. May write its configuration.
    pub(super) fn command(
        &self,
        setup: &Setup,
        folder: &Path,
        port: u16,
    ) -> io::Result<Vec<OsString>> {
        let at = |name: &str| folder.join(name).display().to_string();
        let mut words: Vec<String> = vec![self.path.display().to_string()];
        let mut add = |more: &[&str]| words.extend(more.iter().map(|&word| word.to_owned()));
        match setup.kind {
            Kind::Postgres => {
                add(&["-D", &at("data"), "-p", &port.to_string()]);
                add(&["-c", "listen_addresses=127.0.0.1"]);
                add(&["-c", "unix_socket_directories="]);
            }
            Kind::MariaDb => {
                add(&[
                    "--no-defaults",
                    "--bind-address=127.0.0.1",
                    "--skip-name-resolve",
                ]);
                add(&["--innodb-buffer-pool-size=64M", "--innodb-log-file-size=8M"]);
                add(&[&format!("--port={port}")]);
                for (option, name) in [
                    ("datadir", "data"),
                    ("tmpdir", "tmp"),
                    ("socket", "socket"),
                    ("pid-file", "tmp/pid"),
                    ("init-file", "init.sql"),
                ] {
                    add(&[&format!("--{option}={}", at(name))]);
                }
            }
            Kind::Redis => {
                add(&["--port", &port.to_string(), "--bind", "127.0.0.1"]);
                add(&["--dir", &at("data"), "--protected-mode", "no"]);
            }
            Kind::Etcd => {
                // The peers' port: etcd binds the one it is told; nobody connects to it with one member.
                let client = format!("http://127.0.0.1:{port}");
                let peer = format!("http://127.0.0.1:{}", free_port()?);
                add(&["--name", "n", "--data-dir", &at("data/member0")]);
                add(&[
                    "--listen-client-urls",
                    &client,
                    "--advertise-client-urls",
                    &client,
                ]);
                add(&[
                    "--listen-peer-urls",
                    &peer,
                    "--initial-advertise-peer-urls",
                    &peer,
                ]);
                add(&["--initial-cluster", &format!("n={peer}")]);
                add(&["--initial-cluster-state", "new"]);
                add(&["--heartbeat-interval", "100", "--election-timeout", "1000"]);
            }
            Kind::ZooKeeper => {
                let mut lines = format!(
                    "dataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\ntickTime=100\n\
                     minSessionTimeout=200\nmaxSessionTimeout=120000\ninitLimit=10\nsyncLimit=5\nadmin.enableServer=false\n\
                     maxClientCnxns=0\n4lw.commands.whitelist=*\n",
                    at("data")
                );
                for (name, value) in &setup.settings {
                    lines.push_str(&format!("{name}={value}\n"));
                }
                fs::write(folder.join("zoo.cfg"), lines)?;
                let jars = [
                    "zookeeper",
                    "zookeeper-jute",
                    "slf4j-api",
                    "slf4j-nop",
                    "metrics-core",
                    "snappy-java",
                    "commons-io",
                    "commons-cli",
                ];
                let jars = jars.map(|jar| format!("{JARS}{jar}.jar")).join(":");
                add(&["-Xmx192m", "-XX:+UseSerialGC"]);
                if !setup.durable {
                    add(&["-Dzookeeper.forceSync=no"]);
                }
                add(&[
                    "-cp",
                    &jars,
                    "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                ]);
                add(&[&at("zoo.cfg")]);
            }
        }
        words.extend(setup.words());
        let mut command: Vec<OsString> = Vec::new();
        if let Some(clock) = &setup.clock {
            command.push("env".into());
            for (name, value) in clock.variables() {
                let mut variable = OsString::from(format!("{name}="));
                variable.push(value);
                command.push(variable);
            }
        }
        command.extend(words.into_iter().map(OsString::from));
        Ok(command)
    }
}

const JARS: &str = "/usr/share/java/";

/// Accounts that distributions make for a server.
pub(super) const fn accounts(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Postgres => &["postgres"],
        Kind::MariaDb => &["mysql"],
        Kind::Redis => &["redis"],
        Kind::Etcd => &["etcd"],
        Kind::ZooKeeper => &["zookeeper"],
    }
}

/// The signal that ends a server in good order without waiting for its clients.
pub(super) const fn stop_signal(kind: Kind) -> Signal {
    match kind {
        Kind::Postgres => Signal::INT,
        Kind::MariaDb | Kind::Redis | Kind::Etcd | Kind::ZooKeeper => Signal::TERM,
    }
}

/// A program by name.
fn find_file(name: &str) -> Option<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    // The newest first; PATH may hold a wrapper of an older one.
    if let Ok(versions) = fs::read_dir("/usr/lib/postgresql") {
        folders.extend(versions.flatten().map(|entry| entry.path().join("bin")));
        let major = |folder: &PathBuf| {
            let major = folder.parent()?.file_name()?.to_str()?;
            major.parse::<u32>().ok()
        };
        folders.sort_by_key(|folder| std::cmp::Reverse(major(folder)));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    folders.extend(std::env::split_paths(&path));
    folders.extend(
        [
            "/usr/sbin",
            "/usr/local/sbin",
            "/usr/libexec",
            "/usr/local/bin",
        ]
        .map(PathBuf::from),
    );
    folders.into_iter().find_map(|folder| {
        let file = folder.join(name);
        let mode = fs::metadata(&file).ok()?.permissions().mode();
        (file.is_file() && mode & 0o111 != 0).then_some(file)
    })
}

/// The first thing like `15.18` in what a program says of itself.
fn version(text: &str) -> Option<String> {
    text.split_whitespace().find_map(|word| {
        let word = word.trim_start_matches(|c: char| !c.is_ascii_digit());
        let end = word.find(|c: char| !c.is_ascii_digit() && c != '.');
        let number = word[..end.unwrap_or(word.len())].trim_end_matches('.');
        number.contains('.').then(|| number.to_owned())
    })
}

/// A port of 127.0.0.1 that nobody uses.
///
/// It is taken from below those that the kernel gives to clients: while a server is down, a client that calls its
/// port may otherwise be given just that port as its own and be answered by itself.
pub(super) fn free_port() -> io::Result<u16> {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let lowest = range
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse().ok());
    let ports = 10_000..lowest.unwrap_or(32_768u16).max(11_000);
    let count = u64::from(ports.end - ports.start);
    // Where to begin matters only for not meeting another test program.
    let begin = RandomState::new().hash_one(std::process::id()) % count;
    (0..count)
        .map(|step| ports.start + ((begin + step) % count) as u16)
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .ok_or_else(|| io::Error::other(format!("no free port of 127.0.0.1 in {ports:?}")))
}

fn make_folder(folder: &Path, identity: Option<Identity>) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    give(folder, identity)
}

/// Makes a file or folder the server's own.
pub(super) fn give(path: &Path, identity: Option<Identity>) -> io::Result<()> {
    match identity {
        Some(Identity { uid, gid }) => std::os::unix::fs::chown(path, Some(uid), Some(gid)),
        None => Ok(()),
    }
}

/// Makes a data folder, with a program whose last word is an option that takes it: as a copy of the template, which the first one becomes.
///
/// Templates live in the build's `target/tmp`, which no other user can write; without one, each server pays for
/// its own.
fn from_template(
    kind: Kind,
    name: &str,
    data: &Path,
    identity: Option<Identity>,
    maker: &Path,
    words: &str,
) -> Result<(), Error> {
    let template = template_folder().map(|folder| {
        let uid = identity.map_or_else(|| rustix::process::geteuid().as_raw(), |it| it.uid);
        // A change of the words makes another template.
        let mut hash = DefaultHasher::new();
        words.hash(&mut hash);
        folder.join(format!("{name}-uid{uid}-{:x}", hash.finish()))
    });
    if let Some(template) = template.as_ref().filter(|template| template.is_dir()) {
        return copy(template, data).map_err(Error::io(kind, "copy the template"));
    }
    let mut run = Identity::words(identity);
    run.push(maker.into());
    let mut words: Vec<OsString> = words.split(" ").map(OsString::from).collect();
    if let Some(last) = words.last_mut() {
        last.push("=");
        last.push(data);
    }
    run.extend(words);
    let folder = data.parent().unwrap_or(data);
    let out = Command::new(&run[0])
        .args(&run[1..])
        .current_dir(folder)
        // A MariaDB that starts removes the temporary tables of every other one in the same folder.
        .env("TMPDIR", folder)
        .stdin(Stdio::null())
        .output()
        .map_err(Error::io(kind, "run setpriv (of util-linux)"))?;
    if !out.status.success() {
        let said = [out.stdout, out.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        return Err(Error::failed(
            kind,
            format!("{}: {}", maker.display(), said.trim()),
        ));
    }
    let Some(template) = template else {
        return Ok(());
    };
    // Made beside and renamed: other test programs see a whole one or none. Who comes second keeps the first's.
    let keep = || {
        let folder = template.parent().unwrap_or_else(|| Path::new("/"));
        fs::create_dir_all(folder)?;
        let fresh = tempfile::Builder::new().prefix("new-").tempdir_in(folder)?;
        let whole = fresh.path().join("data");
        copy(data, &whole)?;
        match fs::rename(&whole, &template) {
            Err(_) if template.is_dir() => Ok(()),
            done => done,
        }
    };
    keep().map_err(Error::io(kind, "keep a template"))
}

fn template_folder() -> Option<PathBuf> {
    // Test programs are target/PROFILE/deps/NAME.
    let program = std::env::current_exe().ok()?;
    let deps = program.parent()?;
    let target = deps.ends_with("deps").then(|| deps.parent()?.parent())??;
    Some(target.join("tmp").join("lock-test-templates"))
}

/// Copies a folder with owners and rights.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let out = Command::new("cp")
        .args(["-a", "--reflink=auto", "--no-target-directory"])
        .args([from, to])
        .stdin(Stdio::null())
        .output()?;
    if out.status.success() {
        Ok(())
    } else {
        Err(io::Error::other(
            String::from_utf8_lossy(&out.stderr).into_owned(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn reads_versions() {
        for (said, is) in [
            (
                "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)",
                "15.18",
            ),
            (
                "mariadbd  Ver 10.11.14-MariaDB-0+deb12u2 for debian",
                "10.11.14",
            ),
            ("Redis server v=7.0.15 sha=00000000:0 malloc=x", "7.0.15"),
            ("etcd Version: 3.4.23\nGit SHA: x\n", "3.4.23"),
        ] {
            assert_eq!(version(said).as_deref(), Some(is));
        }
        assert_eq!(version("no number here"), None);
    }
}
