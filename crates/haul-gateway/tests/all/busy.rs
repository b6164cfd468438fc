//! The page and the metrics of gateways while bytes move: over a path that loses datagrams, and to
//! an application that hardly reads.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "programs at the edges are like any others, and what is not there where it must be fails the test"
)]

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::openmetrics::Samples;
use crate::common::{browser, connect, openmetrics, serve, start, wait_until};
use haul_gateway::Gateway;
use haul_gateway::config::ChannelKind;
use serde_json::Value;

/// The rate of the sending session's class.
const CLASS_RATE: &str = "40Mb/s";
const RING: u64 = 4 << 20;

/// Forwards datagrams, but drops every nth: the page is to show their retransmission.
struct LossyPath {
    front: UdpSocket,
    is_over: Arc<AtomicBool>,
}

impl LossyPath {
    const ONE_OF: u64 = 50;

    fn new() -> Self {
        Self {
            front: socket(),
            is_over: Arc::default(),
        }
    }

    fn address(&self) -> SocketAddr {
        self.front.local_addr().unwrap()
    }

    fn lead(&self, to: SocketAddr) {
        let (front, over) = (self.front.try_clone().unwrap(), Arc::clone(&self.is_over));
        std::thread::spawn(move || {
            let mut behind: HashMap<SocketAddr, UdpSocket> = HashMap::new();
            pass(&front, &over, |octets, client| {
                let back = behind.entry(client).or_insert_with(|| {
                    let back = socket();
                    back.connect(to).unwrap();
                    let (own, front) = (back.try_clone().unwrap(), front.try_clone().unwrap());
                    let over = Arc::clone(&over);
                    std::thread::spawn(move || {
                        pass(&own, &over, |octets, _| drop(front.send_to(octets, client)));
                    });
                    back
                });
                let _ = back.send(octets);
            });
        });
    }
}

impl Drop for LossyPath {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
    }
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let soon = Duration::from_millis(50);
    socket.set_read_timeout(Some(soon)).unwrap();
    socket
}

fn pass(from: &UdpSocket, over: &AtomicBool, mut send: impl FnMut(&[u8], SocketAddr)) {
    let (mut octets, mut count) = (vec![0; 65_536], 0);
    while !over.load(Ordering::Acquire) {
        if let Ok((len, sender)) = from.recv_from(&mut octets) {
            count += 1;
            // Connections are to come about.
            if count < 20 || count % LossyPath::ONE_OF != 0 {
                send(&octets[..len], sender);
            }
        }
    }
}

/// Two gateways and two sessions between them: by one a program sends as much as it may, over a
/// path that loses datagrams; by the other a program is sent more than it reads.
struct Busy {
    near: Gateway,
    far: Gateway,
    is_over: Arc<AtomicBool>,
    _path: LossyPath,
}

/// A gateway that is reached over UDP by a path that loses datagrams.
fn far_gateway() -> (Gateway, LossyPath) {
    let path = LossyPath::new();
    let channel = "[[channel]]\nlisten = '127.0.0.1:0'\n";
    let (far, _) = start(&format!(
        "name = 'gw.site-b.example'\nlisten = '127.0.0.1:0'\nanonymous = true\nexit = ['127.0.0.0/8']\nring = '4MiB'\n\
         {channel}kind = 'iwarp/udt'\npublic = '{}'\n{channel}kind = 'tcp'\n",
        path.address()
    ));
    let to = far.channel_addrs().into_iter();
    let mut to = to.filter(|(kind, _)| *kind == ChannelKind::IwarpUdt);
    path.lead(to.next().unwrap().1);
    (far, path)
}

impl Busy {
    fn new() -> Self {
        let (far, path) = far_gateway();
        let sink = serve(|mut stream| {
            let mut octets = vec![0; 64 << 10];
            while matches!(stream.read(&mut octets), Ok(1..)) {}
        });
        let source = serve(|stream| send(stream, &AtomicBool::new(false)));
        let listener = "[[listener]]\nkind = 'forward'\nlisten = '127.0.0.1:0'\n";
        let via = format!("via = ['{}']\nring = '{RING}'", far.listen_addr().unwrap());
        let (near, _) = start(&format!(
            "name = 'gw.site-a.example'\nanonymous = true\n[admin]\nlisten = '127.0.0.1:0'\n\
             [[class]]\nname = 'bulk'\nshare = 20\nrate = '{CLASS_RATE}'\n\
             {listener}to = '{sink}'\n{listener}to = '{source}'\n\
             [[route]]\nto = ['{sink}']\nclass = 'bulk'\nchannels = ['iwarp/udt']\n{via}\n\
             [[route]]\nto = ['{source}']\nchannels = ['tcp']\n{via}\n",
        ));
        let is_over = Arc::new(AtomicBool::new(false));
        let [up, down] = [0, 1].map(|listener| connect(near.listener_addrs()[listener]));
        let (over, slow) = (Arc::clone(&is_over), Arc::clone(&is_over));
        std::thread::spawn(move || send(up, &over));
        std::thread::spawn(move || read_slowly(down, &slow));
        Self {
            near,
            far,
            is_over,
            _path: path,
        }
    }

    /// Returns the near gateway's state of the segment over this kind of channel.
    fn segment(&self, kind: &str) -> Option<Value> {
        segment(&self.near, kind)
    }
}

fn ask(gateway: &Gateway, path: &str) -> String {
    let at = gateway.admin_addr().unwrap();
    let mut stream = connect(at);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {at}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// What a gateway shows of the segment over this kind of channel.
fn segment(gateway: &Gateway, kind: &str) -> Option<Value> {
    let shown: Value = serde_json::from_str(&ask(gateway, "/api/status")).unwrap();
    let sessions = shown["sessions"].as_array().unwrap().iter();
    let mut segments = sessions.map(|session| session["segments"][0].clone());
    segments.find(|segment| segment["channel"] == kind)
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
    }
}

fn send(mut stream: TcpStream, over: &AtomicBool) {
    let octets = vec![7; 64 << 10];
    while !over.load(Ordering::Acquire) && stream.write_all(&octets).is_ok() {}
}

fn read_slowly(mut stream: TcpStream, over: &AtomicBool) {
    let mut octets = vec![0; 64 << 10];
    while !over.load(Ordering::Acquire) && matches!(stream.read(&mut octets), Ok(1..)) {
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Stages that may limit a session that a program sends by as fast as it can.
const ON_THE_WAY: [&str; 3] = ["path", "ring", "share"];

#[test]
fn metrics_of_a_busy_session_show_its_memory_and_its_limit() {
    let busy = Busy::new();
    let is_of = |labels: &[(String, String)], name: &str, value: &str| {
        labels.contains(&(name.to_owned(), value.to_owned()))
    };
    let of = |samples: &Samples, name: &str, channel: &str| {
        let mut of = samples
            .iter()
            .filter(|((known, labels), _)| known == name && is_of(labels, "channel", channel));
        of.next().map_or(f64::NAN, |(_, value)| *value)
    };
    let limit = |samples: &Samples, channel: &str| {
        let mut of = samples.iter().filter(|((name, labels), value)| {
            name == "haul_segment_limit" && is_of(labels, "channel", channel) && **value == 1.0
        });
        let label = of.next().map(|((_, labels), _)| labels.clone());
        assert!(of.next().is_none(), "two limits");
        let mut label = label.unwrap_or_default().into_iter();
        label
            .find(|(name, _)| name == "limit")
            .map(|(_, limit)| limit)
    };
    let mut last = String::new();
    let wanted =
        "a ring, a window and an arena in use, losses, a class that sends, and both limits";
    let mut is_so = || {
        last = ask(&busy.near, "/metrics");
        let samples = openmetrics::parse(&last).unwrap_or_else(|why| panic!("{why}\n{last}"));
        let up = |name: &str| of(&samples, &format!("haul_segment_{name}"), "iwarp/udt");
        let down = |name: &str| of(&samples, &format!("haul_segment_{name}"), "tcp");
        let within = |used: f64, size: f64| used > 0.0 && used <= size;
        let by_class = samples.iter().any(|((name, labels), bytes)| {
            name == "haul_class_sent_bytes_total" && is_of(labels, "class", "bulk") && *bytes > 0.0
        });
        let limits = (limit(&samples, "iwarp/udt"), limit(&samples, "tcp"));
        within(up("ring_used_bytes"), up("ring_size_bytes"))
            && up("ring_size_bytes") <= RING as f64
            && within(up("window_used_bytes"), up("window_size_bytes"))
            && within(down("arena_used_bytes"), down("arena_size_bytes"))
            && down("arena_size_bytes") == RING as f64
            && up("resent_total") > 0.0
            && up("send_rate") > 0.0
            && up("round_trip_seconds") > 0.0
            && by_class
            && limits.0.is_some_and(|limit| ON_THE_WAY.contains(&&*limit))
            && limits.1.as_deref() == Some("sink")
    };
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(std::time::Instant::now() < until, "not {wanted}: {last}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Returns the value of this name in each of the segments.
fn fields(page: &str, name: &str) -> Vec<String> {
    let before = format!(">{name}</dt>");
    let beside = page.split(&before).skip(1);
    let values = beside.map(|rest| rest.split("</dd>").next().unwrap_or_default());
    values.map(without_tags).collect()
}

fn without_tags(html: &str) -> String {
    let pieces = html.split('<').enumerate();
    let texts = pieces.map(|(at, piece)| match at {
        0 => piece,
        _ => piece.split_once('>').map_or("", |(_, text)| text),
    });
    texts.collect()
}

#[test]
fn the_page_shows_in_a_real_browser_what_moves_what_is_lost_and_what_limits() {
    let busy = Busy::new();
    wait_until("losses, a rate and a reader that holds up", || {
        let (up, down) = (busy.segment("iwarp/udt"), busy.segment("tcp"));
        up.is_some_and(|up| up["resent"].as_u64() > Some(0) && up["rate_out"].as_f64() > Some(1e5))
            && down.is_some_and(|down| down["limit"] == "sink")
    });
    let address = busy.near.admin_addr().unwrap();
    let Some((page, said)) = browser::dom(address) else {
        return;
    };
    let text = without_tags(&page);
    let hop = busy.far.listen_addr().unwrap().to_string();
    for wanted in [&hop, "iwarp/udt", "bulk", "20 %", "40.0 Mb/s", "is open"] {
        assert!(text.contains(wanted), "{wanted}: {text}\n{said}");
    }
    // One is limited on the path, the other by its receiver.
    assert!(
        text.contains("Limited by the receiving applications"),
        "{text}"
    );
    let on_the_way = [
        "Limited by the path",
        "Limited by the ring",
        "Limited by its class",
    ];
    let is_named = |words: &&str| text.contains(*words);
    assert!(on_the_way.iter().any(is_named), "{text}");
    let lost = |value: &String| value.contains(" retransmitted");
    assert!(fields(&page, "Losses").iter().any(lost), "{page}");
    for name in ["Ring", "Arena"] {
        let values = fields(&page, name);
        let is_in_use = |value: &String| value.contains(" of ") && !value.starts_with("0 B");
        assert!(values.iter().any(is_in_use), "{name}: {values:?}");
    }
    // A nearby gateway acknowledges announcements at once.
    let windows = fields(&page, "Window");
    assert!(
        windows.iter().any(|value| value.ends_with(" of 4.00 MiB")),
        "{windows:?}"
    );
    let channels = fields(&page, "Channel");
    assert!(
        channels.contains(&"iwarp/udt, 1 connection".to_owned()),
        "{channels:?}"
    );
    // The axes of the charts: times below, and a rate that is above the peak.
    let axes: Vec<Vec<String>> = page
        .split("<span class=\"y\">")
        .skip(1)
        .map(|rest| rest.split("</span></span>").next().unwrap_or_default())
        .map(|marks| marks.split("</span>").map(without_tags).collect())
        .collect();
    assert_eq!(axes.len(), 2, "{page}");
    for marks in &axes {
        let [top, middle, zero] = marks.as_slice() else {
            panic!("{axes:?}");
        };
        let is_rate = |mark: &String| mark.ends_with("b/s");
        assert!(is_rate(top) && is_rate(middle) && zero == "0", "{axes:?}");
    }
    assert_eq!(page.matches(">60 s ago<").count(), 2, "{text}");
    let rates = text.split("↑ out ").skip(1);
    let is_rate = |rest: &str| {
        rest.split(' ')
            .nth(1)
            .is_some_and(|unit| unit.starts_with("Mb/s"))
    };
    assert!(rates.into_iter().any(is_rate), "{text}");
    assert!(!said.contains("CONSOLE"), "{said}");
    // The picture of docs/gateway-reference.md is made by this.
    if let Some(file) = std::env::var_os("GATEWAY_PAGE_PNG") {
        browser::picture(address, file.as_ref());
    }
}

#[test]
fn the_page_shows_what_a_download_loses() {
    let (far, _path) = far_gateway();
    let source = serve(|stream| send(stream, &AtomicBool::new(false)));
    let (near, _) = start(&format!(
        "name = 'gw.site-a.example'\nanonymous = true\n[admin]\nlisten = '127.0.0.1:0'\n\
         [[listener]]\nkind = 'forward'\nlisten = '127.0.0.1:0'\nto = '{source}'\n\
         [[route]]\nto = ['*']\nchannels = ['iwarp/udt']\nvia = ['{}']\nring = '{RING}'\n",
        far.listen_addr().unwrap()
    ));
    let down = connect(near.listener_addrs()[0]);
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    std::thread::spawn(move || read_slowly(down, &over));
    wait_until("losses", || {
        let shown = segment(&near, "iwarp/udt");
        shown.is_some_and(|shown| shown["out_of_order"].as_u64() > Some(0))
    });
    let samples = openmetrics::parse(&ask(&near, "/metrics")).unwrap();
    let mut metric = samples
        .iter()
        .filter(|((name, _), _)| name == "haul_segment_out_of_order_total");
    assert!(metric.next().is_some_and(|(_, value)| *value > 0.0));
    let shown = browser::dom(near.admin_addr().unwrap());
    is_over.store(true, Ordering::Release);
    let Some((page, said)) = shown else {
        return;
    };
    let losses = fields(&page, "Losses");
    let [losses] = losses.as_slice() else {
        panic!("{losses:?}");
    };
    assert!(
        losses.contains("in: ") && losses.ends_with(" arrived out of order"),
        "{losses}"
    );
    assert!(!said.contains("CONSOLE"), "{said}");
}
