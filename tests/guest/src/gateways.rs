//! Two gateways of this process, each with a device of its own: a program's bytes cross from one
//! device to the other and come back.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Args;
use haul_gateway::config::ChannelKind;
use haul_gateway::{Config, Gateway, Log};
use haul_verbs::Device;
use haul_verbs::provider::Provider as _;

use crate::pattern;

/// Bytes that go out and come back.
const BYTES: usize = 8 << 20;
/// The same at a rate, bits per second, which is what they take each way.
const PACED_BYTES: usize = 1 << 20;
const PACED_BPS: u32 = 4_000_000;
/// 2.1 s but for what leaves at once, 10 ms of the rate or one read of it.
const PACED_LEAST: Duration = Duration::from_millis(1_800);
/// It has failed if no byte arrives for so long.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
pub(crate) struct Ends {
    /// Device of the gateway that sessions come to
    #[arg(long)]
    device: String,
    /// Its address
    #[arg(long)]
    at: IpAddr,
    /// Device of the gateway that programs come to
    #[arg(long)]
    peer: String,
    /// Its address
    #[arg(long)]
    from: IpAddr,
}

impl Ends {
    /// Bytes go through, read by the one gateway and written by the other: as fast as they go, and
    /// at a rate, which devices do not keep.
    pub(crate) fn run(&self) -> Result<()> {
        for mode in ["pull", "push"] {
            let free = self.exchange(mode, "", BYTES).context(mode)?;
            let rate = format!("rate = '{PACED_BPS}bit'\n");
            let paced = self.exchange(mode, &rate, PACED_BYTES).context(mode)?;
            println!(
                "{mode}: {BYTES} octets in {free:?}; {PACED_BYTES} in {paced:?} at {PACED_BPS} bit/s"
            );
            ensure!(
                paced >= PACED_LEAST,
                "{mode}: {paced:?} at {PACED_BPS} bit/s"
            );
        }
        Ok(())
    }

    /// There and back, and how long it took.
    fn exchange(&self, mode: &str, more: &str, bytes: usize) -> Result<Duration> {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let to = server.local_addr()?;
        let echo = std::thread::spawn(move || echo(&server));
        let Self {
            device,
            at,
            peer,
            from,
        } = self;
        let channel = |device: &str, at: &IpAddr| {
            let at = SocketAddr::new(*at, 0);
            format!("[[channel]]\nkind = 'verbs'\nlisten = '{at}'\ndevice = '{device}'\n")
        };
        let listen = SocketAddr::new(*at, 0);
        let (far, _) = start(&format!(
            "name = 'exit'\nlisten = '{listen}'\nanonymous = true\nexit = ['127.0.0.0/8']\n{}",
            channel(device, at)
        ))?;
        let via = far.listen_addr().context("no address")?;
        let (near, said) = start(&format!(
            "name = 'entry'\nanonymous = true\n{}\
             [[listener]]\nkind = 'forward'\nlisten = '127.0.0.1:0'\nto = '{to}'\n\
             [[route]]\nto = ['*']\nvia = ['{via}']\nchannels = ['verbs']\nmode = '{mode}'\nring = '4MiB'\n{more}",
            channel(peer, from)
        ))?;
        let sent = pattern::bytes(7, bytes);
        let begin = Instant::now();
        let got = send_and_receive(near.listener_addrs()[0], &sent);
        let took = begin.elapsed();
        let said = said.lock().map(|lines| lines.clone());
        ensure!(got? == sent, "other octets came back: {said:?}");
        echo.join().ok().context("the server failed")??;
        let said = said.unwrap_or_default();
        let used = said.iter().any(|line| line.contains("data channel verbs"));
        ensure!(used, "over another channel: {said:?}");
        Ok(took)
    }
}

pub(crate) fn start(text: &str) -> Result<(Gateway, Arc<Mutex<Vec<String>>>)> {
    let config = Config::parse(text).map_err(|problems| anyhow!("{problems:?}"))?;
    let lines = Arc::new(Mutex::new(Vec::new()));
    let said = Arc::clone(&lines);
    let log = Log::new(move |_, line| {
        println!("{line}");
        if let Ok(mut lines) = said.lock() {
            lines.push(line.to_owned());
        }
    });
    Ok((Gateway::start(config, device, log)?, lines))
}

fn device(_: ChannelKind, name: Option<&str>) -> Result<Device, String> {
    device_of(name)
}

pub(crate) fn device_of(name: Option<&str>) -> Result<Device, String> {
    let devices = haul_ibv::Ibv::load().devices();
    let devices = devices.map_err(|error| error.to_string())?;
    let found = devices
        .into_iter()
        .find(|device| Some(device.name()) == name);
    found.ok_or_else(|| format!("no device {name:?}"))
}

fn echo(server: &TcpListener) -> Result<()> {
    let (mut stream, _) = server.accept()?;
    let mut octets = vec![0; 64 << 10];
    loop {
        let count = stream.read(&mut octets)?;
        if count == 0 {
            return Ok(());
        }
        stream.write_all(&octets[..count])?;
    }
}

fn send_and_receive(to: SocketAddr, octets: &[u8]) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut writer = stream.try_clone()?;
    let mut got = Vec::new();
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || {
            writer.write_all(octets)?;
            writer.shutdown(Shutdown::Write)
        });
        stream.read_to_end(&mut got)?;
        sending.join().ok().context("the sender failed")??;
        Ok(got)
    })
}
