//! The client's side, with a program in place of ssh.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use haul_io::netns::NetNs;

use super::*;
use crate::choice::Choice;
use crate::client::Policy;
use crate::report::{Event, Observer};

/// What the agent answers before it reads anything.
fn welcome(address: &str, port: u16) -> Welcome {
    Welcome {
        key: [0; 32],
        ports: vec![port],
        address: Some(address.to_owned()),
        range: (24_725, 24_740),
        failure: None,
        token: [0; 16],
    }
}

/// A host whose ssh sends this welcome, then neither reads nor ends.
fn deaf(dir: &Path, welcome: &Welcome) -> Ssh {
    let mut answer = greeting::line().into_bytes();
    let body = minicbor::to_vec(welcome).unwrap();
    write_frame(&mut answer, Kind::Greeting, 0, &body).unwrap();
    let file = dir.join("answer");
    std::fs::write(&file, answer).unwrap();
    let script = "cat \"$0\"; exec sleep 1000";
    let command = vec!["sh".into(), "-c".into(), script.into(), file.into()];
    ssh(command, None)
}

fn ssh(command: Vec<OsString>, data_address: Option<&str>) -> Ssh {
    let settings = Settings {
        command,
        destination: "box".to_owned(),
        remote_haul: REMOTE_HAUL.to_owned(),
        ports: None,
        data_address: data_address.map(str::to_owned),
        through_ssh: true,
    };
    Ssh::new(settings, Arc::new(|_| {}))
}

/// Runs `work` on a thread; it must end long before the program in place of ssh does.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ended) = bounded(1);
    std::thread::spawn(move || done.send(work()));
    ended
        .recv_timeout(Duration::from_secs(60))
        .expect("it hangs")
}

#[test]
fn an_agent_that_fails_need_not_end() {
    let dir = tempfile::tempdir().unwrap();
    let welcome = Welcome {
        failure: Some("no port".to_owned()),
        ..welcome("127.0.0.1", 24_725)
    };
    let ssh = deaf(dir.path(), &welcome);
    let fault = in_time(move || ssh.log_in([0; 32], false).map(drop)).unwrap_err();
    assert_eq!(fault.code, Code::Unreachable);
    assert!(fault.text.contains("no port"), "{fault}");
}

#[test]
fn an_agent_that_answers_nothing_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("line");
    std::fs::write(&file, greeting::line()).unwrap();
    let script = "cat \"$0\"; exec sleep 1000";
    let command = vec!["sh".into(), "-c".into(), script.into(), file.into()];
    let mut ssh = ssh(command, None);
    assert!(ssh.answer <= Duration::from_secs(15));
    ssh.answer = Duration::from_millis(100);
    let fault = in_time(move || ssh.log_in([0; 32], false).map(drop)).unwrap_err();
    assert_eq!(fault.code, Code::Unreachable);
    assert!(fault.text.contains("opened no port through ssh"), "{fault}");
}

#[test]
fn an_ssh_that_reads_no_more_delays_neither_a_connection_nor_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let ssh = deaf(dir.path(), &welcome("127.0.0.1", 24_725));
    let login = ssh.log_in([0; 32], false).unwrap();
    let pipe = Pipe(login.mux.clone());
    let mut stream = pipe.connect("", 0, Duration::from_secs(60)).unwrap();
    // More than a pipe holds.
    stream.write_all(&[0; 128 << 10]).unwrap();
    let late = in_time(move || {
        loop {
            // The first ones may still find room.
            if let Err(fault) = pipe.connect("", 0, Duration::from_millis(200)) {
                break fault;
            }
        }
    });
    assert_eq!(late.code, Code::PeerGone);
    assert!(late.text.contains("took no bytes"), "{late}");
    in_time(move || drop(login));
}

struct Silent;

impl Observer for Silent {
    fn event(&self, _: &Event<'_>) {}
}

/// Gets a file from an agent in this process, through the pipe.
fn get_through_a_pipe(file: &Path, into: &Path) -> Result<(), Fault> {
    let (near, far) = UnixStream::pair().unwrap();
    let output = far.try_clone().unwrap();
    std::thread::spawn(move || agent::serve(far, output, &agent::Environment::default()));
    let key = PrivateKey::generate()?;
    let introduction = Introduction {
        software: String::new(),
        key: *key.public().as_bytes(),
        ports: None,
        probe: false,
    };
    let (mut input, mut output) = (BufReader::new(near.try_clone().unwrap()), near);
    skip_to_agent(&mut input)?;
    let body = minicbor::to_vec(&introduction).unwrap();
    write_frame(&mut output, Kind::Greeting, 0, &body).unwrap();
    let (_, body) = read_frame(&mut input).unwrap();
    let welcome: Welcome = minicbor::decode(&body).unwrap();
    assert_eq!(welcome.failure, None);
    let agent = PublicKey::from_bytes(welcome.key);
    let mux = Mux::start(input, output, None).unwrap();
    let config = Config {
        host: "box".to_owned(),
        port: welcome.ports[0],
        channel: ChannelKind::Tcp,
        streams: 2,
        rate_bps: None,
        congestion: None,
        connect_timeout: Duration::from_secs(10),
        dead_after: Duration::from_secs(20),
        give_up_after: Some(Duration::ZERO),
        sealed: true,
        control: ClientConfig::new(Some(&Identity::Key(key)), &Trust::Keys(vec![agent]))?,
        dialer: Some(Arc::new(Pipe(mux.clone()))),
        access: None,
        may_fall_back: false,
        paths: None,
        limit: None,
    };
    let path = file.as_os_str().as_encoded_bytes().to_vec();
    let policy = Policy::default();
    let got = crate::client::get(&config, &[path], &Choice::default(), into, policy, &Silent);
    mux.done();
    got.map(drop)
}

#[test]
fn the_pipe_needs_no_loopback_device_at_either_end() {
    let Ok(network) = NetNs::new() else {
        println!("SKIPPED: cannot make a network namespace here");
        return;
    };
    let (from, into) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let content: Vec<u8> = (0..5 << 20).map(|at: u32| (at % 251) as u8).collect();
    let file = from.path().join("a");
    std::fs::write(&file, &content).unwrap();
    // Its loopback device is down: nothing reaches 127.0.0.1.
    let target = into.path().to_owned();
    let got = in_time(move || {
        network.run(|| {
            assert!(haul_io::tcp::pair().is_err());
            get_through_a_pipe(&file, &target)
        })
    });
    assert_eq!(got.unwrap(), Ok(()));
    assert!(std::fs::read(into.path().join("a")).unwrap() == content);
}

#[test]
fn the_other_host_names_an_ip_address_and_a_port_of_its_range() {
    let named = ssh(Vec::new(), None);
    let ip = named.data_ip(&welcome("192.0.2.1", 1)).unwrap();
    assert_eq!(ip, IpAddr::from([192, 0, 2, 1]));
    let fault = named.data_ip(&welcome("localhost", 1)).unwrap_err();
    assert!(fault.text.contains("names no IP address"), "{fault}");
    // The user may name any.
    let own = ssh(Vec::new(), Some("localhost"));
    assert!(own.data_ip(&welcome("192.0.2.1", 1)).unwrap().is_loopback());

    assert_eq!(named.agent_port(&welcome("", 24_740)).ok(), Some(24_740));
    assert!(named.agent_port(&welcome("", 24_741)).is_err());
    let privileged = Welcome {
        range: (20, 30),
        ..welcome("", 25)
    };
    assert!(named.agent_port(&privileged).is_err());
    let mut own = ssh(Vec::new(), None);
    own.settings.ports = Ports::new(25, 25);
    assert_eq!(own.agent_port(&privileged).ok(), Some(25));
}

#[test]
fn ssh_forwards_no_agent() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config");
    std::fs::write(&config, "ForwardAgent yes\nForwardX11 yes\n").unwrap();
    let mut ssh = Command::new("ssh");
    ssh.arg("-F")
        .arg(&config)
        .arg("-G")
        .args(OPTIONS)
        .arg("box");
    let Ok(shown) = ssh.output() else {
        println!("SKIPPED: no OpenSSH client");
        return;
    };
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    for line in ["forwardagent no", "forwardx11 no"] {
        assert!(shown.lines().any(|shown| shown == line), "{shown}");
    }
}
