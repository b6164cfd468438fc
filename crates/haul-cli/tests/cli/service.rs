//! `haul gateway run` as a service: signals, the manager of services, its unit.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{text, wait_until};

/// A running gateway, ended with this.
struct Gateway {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    config: PathBuf,
}

impl Gateway {
    fn start(config: &Path, content: &str, environment: &[(&str, String)]) -> Self {
        std::fs::write(config, content).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_haul"))
            .args(["gateway", "run"])
            .arg(config)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let log = Arc::new(Mutex::new(Vec::new()));
        let keep = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                keep.lock().unwrap().push(line);
            }
        });
        Self {
            child,
            log,
            config: config.to_owned(),
        }
    }

    /// The first line with `text`, once there is one.
    fn line(&self, text: &str) -> String {
        let find = || {
            self.log
                .lock()
                .unwrap()
                .iter()
                .find(|line| line.contains(text))
                .cloned()
        };
        wait_until(text, || find().is_some() || self.log_ended());
        find().unwrap_or_else(|| panic!("no '{text}': {:?}", self.log.lock().unwrap()))
    }

    fn log_ended(&self) -> bool {
        Arc::strong_count(&self.log) == 1
    }

    fn address(&self, what: &str) -> SocketAddr {
        self.line(what).rsplit(' ').next().unwrap().parse().unwrap()
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args(["-s", name, &self.child.id().to_string()])
            .status();
        assert!(status.unwrap().success());
    }

    fn reload(&self, content: &str) {
        std::fs::write(&self.config, content).unwrap();
        self.signal("HUP");
    }

    fn end(&mut self) -> ExitStatus {
        let mut ended = None;
        wait_until("the gateway's end", || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        ended.unwrap()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const FAR: &str = "name = 'far'\nlisten = '127.0.0.1:0'\nanonymous = true\nexit = ['127.0.0.0/8']\nring = '8MiB'\n\
                   [[channel]]\nkind = 'tcp'\nlisten = '127.0.0.1:0'\n";

fn near(far: SocketAddr, to: SocketAddr, more: &str) -> String {
    format!(
        "name = 'near'\nanonymous = true\n[admin]\nlisten = '127.0.0.1:0'\n\
         [[listener]]\nkind = 'forward'\nlisten = '127.0.0.1:0'\nto = '{to}'\n\
         [[route]]\nto = ['*']\nvia = ['{far}']\nring = '8MiB'\nchannels = ['tcp']\n{more}\n"
    )
}

/// Two gateways, a server behind them that sends back what it gets, and a connection to it.
struct Carrying {
    near: Gateway,
    far: Gateway,
    server: SocketAddr,
    stream: TcpStream,
    dir: tempfile::TempDir,
}

impl Carrying {
    fn start(environment: impl FnOnce(&Path) -> Vec<(&'static str, String)>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = echo_server();
        let far = Gateway::start(&dir.path().join("far.toml"), FAR, &[]);
        let content = near(far.address("sessions at"), server, "");
        let near = Gateway::start(
            &dir.path().join("near.toml"),
            &content,
            &environment(dir.path()),
        );
        let stream = connect(near.address("listener at"));
        let carrying = Self {
            near,
            far,
            server,
            stream,
            dir,
        };
        carrying.echo(b"begin");
        carrying
    }

    fn echo(&self, octets: &[u8]) {
        (&self.stream).write_all(octets).unwrap();
        let mut got = vec![0; octets.len()];
        (&self.stream).read_exact(&mut got).unwrap();
        assert_eq!(got, octets);
    }
}

fn echo_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    address
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    stream
}

#[test]
fn sigterm_lets_connections_finish_and_takes_no_new_ones() {
    let mut carrying = Carrying::start(|_| Vec::new());
    let listener = carrying.near.address("listener at");
    carrying.near.signal("TERM");
    carrying.near.line("draining connections");
    wait_until("a closed listener", || {
        TcpStream::connect(listener).is_err()
    });
    carrying.echo(&vec![7; 200_000]);
    carrying.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(carrying.stream.read(&mut [0]).unwrap(), 0);
    assert_eq!(carrying.near.end().code(), Some(0));
    // The other end of its session has nothing left either.
    carrying.far.signal("TERM");
    assert_eq!(carrying.far.end().code(), Some(0));
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let mut carrying = Carrying::start(|_| Vec::new());
    carrying.near.signal("TERM");
    carrying.near.line("draining connections");
    carrying.echo(b"still there");
    carrying.near.signal("TERM");
    assert_eq!(carrying.near.end().code(), Some(130));
    assert!(!matches!(carrying.stream.read(&mut [0]), Ok(1..)));
}

#[test]
fn sighup_has_it_read_its_configuration_again() {
    let carrying = Carrying::start(|_| Vec::new());
    let far = carrying.far.address("sessions at");
    carrying.near.reload("name = ");
    let said = carrying.near.line("configuration not taken");
    assert!(said.contains("near.toml"), "{said}");
    carrying.echo(b"in spite of it");
    carrying
        .near
        .reload(&near(far, carrying.server, "regions = 5"));
    carrying
        .near
        .line("configuration taken: 1 new, 1 gone and 0 kept routes");
    carrying.echo(&vec![1; 200_000]);
}

#[test]
fn what_memory_holds_is_said_at_the_start() {
    let carrying = Carrying::start(|_| Vec::new());
    let said = carrying.near.line("a session of the route to *");
    assert!(said.contains("takes 16 MiB of them; 64 fit"), "{said}");
    let said = carrying.far.line("a session that ends here");
    assert!(said.contains("takes 16 MiB of them; 64 fit"), "{said}");
    let page = carrying.near.line("page at http://127.0.0.1:");
    assert!(page.ends_with('/'));
}

#[test]
fn the_manager_of_services_is_told_what_goes_on() {
    let mut manager = None;
    let carrying = Carrying::start(|dir| {
        let path = dir.join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        manager = Some(socket);
        vec![
            ("NOTIFY_SOCKET", text(&path)),
            ("WATCHDOG_USEC", "400000".to_owned()),
        ]
    });
    let manager = manager.unwrap();
    let hear = |wanted: &str| {
        let mut octets = [0; 4096];
        loop {
            let count = manager.recv(&mut octets).unwrap();
            let said = String::from_utf8_lossy(&octets[..count]).into_owned();
            if !said.starts_with("WATCHDOG=1") || wanted == "WATCHDOG=1" {
                assert!(said.starts_with(wanted), "{said} instead of {wanted}");
                return said;
            }
        }
    };
    hear("READY=1");
    hear("WATCHDOG=1");
    carrying.near.signal("HUP");
    let reloading = hear("RELOADING=1");
    assert!(reloading.contains("\nMONOTONIC_USEC="), "{reloading}");
    hear("READY=1");
    hear("WATCHDOG=1");
    carrying.near.signal("TERM");
    hear("STOPPING=1");
    // It must show that it lives for as long as it takes to finish.
    hear("WATCHDOG=1");
    assert!(carrying.dir.path().exists());
}

#[test]
fn the_units_are_ones_that_systemd_takes_and_are_hardened() {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let analyze = |args: &[&str]| Command::new("systemd-analyze").args(args).output();
    if !analyze(&["--version"]).is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: no systemd-analyze");
        return;
    }
    // Exposure out of 100, where 0 is a service that can do nothing. A manager of a user confines
    // none.
    for (path, drop_in, most) in [
        ("haul-serve.service", None, "20"),
        ("haul-gateway.service", None, "20"),
        (
            "haul-gateway.service",
            Some("haul-gateway-transparent.conf"),
            "20",
        ),
        ("haul-engine.service", None, "30"),
        ("user/haul-engine.service", None, "100"),
    ] {
        let name = path.trim_start_matches("user/");
        // Where the program is installed is the packager's; here it is where it was built.
        let content = std::fs::read_to_string(packaging.join(path)).unwrap();
        assert!(content.contains("=/usr/bin/haul "));
        let content = content.replace("/usr/bin/haul ", concat!(env!("CARGO_BIN_EXE_haul"), " "));
        let dir = tempfile::tempdir().unwrap();
        let unit = dir.path().join(name);
        std::fs::write(&unit, content).unwrap();
        let socket = packaging.join(path).with_extension("socket");
        if socket.exists() {
            std::fs::copy(socket, unit.with_extension("socket")).unwrap();
        }
        if let Some(drop_in) = drop_in {
            let folder = dir.path().join(format!("{name}.d"));
            std::fs::create_dir(&folder).unwrap();
            std::fs::copy(packaging.join(drop_in), folder.join(drop_in)).unwrap();
        }
        let verified = analyze(&["verify", &text(&unit)]).unwrap();
        let said = String::from_utf8_lossy(&verified.stderr);
        assert!(verified.status.success() && said.is_empty(), "{said}");
        let most = format!("--threshold={most}");
        let judged = analyze(&["security", "--offline=yes", &most, &text(&unit)]);
        let judged = judged.unwrap();
        let said = String::from_utf8_lossy(&judged.stdout);
        assert!(judged.status.success(), "{said}");
    }
}
