//! Figures 10 and 11: SIPp, unmodified. Figure 10 is its own server and client scenarios (`-sn
//! uas`, `-sn uac`); in figure 11 a call also sends data while it lasts, because the first bytes of
//! every peer go plain.
//!
//! SIPp's response times come from a clock that ticks every 4 ms. Its log of messages has
//! microseconds, so times are taken from there.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use haul_io::process::Ended;
use haul_report::stats::median;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::bench::Context;
use super::programs::{CARRIERS, Carrier, Folder, Stage};
use super::record::{Figure, Sample, announce};
use haul_lab::compare::plan::Plan;
use haul_lab::compare::runner::{Running, Stop};
use haul_lab::lab::Lab;

/// Where the server listens.
const PORT: u16 = 5060;
/// Calls per second under light load.
const LIGHT: u32 = 200;
/// At full speed: so many calls at a time, which fit into the receive buffer of a UDP socket.
const AT_A_TIME: u32 = 20;
/// The client of a measurement that takes longer is stuck.
const PATIENCE: Duration = Duration::from_secs(60);
/// New clients per second.
const CLIENTS_PER_S: u32 = 1_500;
/// Clients of one address, each with a port of its own: Linux assigns 28,232
/// (`net.ipv4.ip_local_port_range`), the odd or the even half first; once that half is used up,
/// every `bind(2)` searches all of it, which takes milliseconds.
const PER_ADDRESS: u32 = 14_000;
/// Client processes at most.
const GROUPS_MAX: u32 = 16;
/// Clients of the last measurement.
const MOST_CLIENTS: u32 = 100_000;
/// Of the clients so many must have their call: by UDP one may be lost for good.
const ENOUGH: f64 = 0.99;
/// How often a call sends data while it lasts, and the interval.
const INFOS: u32 = 3;
const APART: Duration = Duration::from_millis(500);
/// The kernel frees sockets a moment after their end, and a call's last words take theirs.
const A_MOMENT: Duration = Duration::from_secs(1);
/// Files that SIPp opens beside the sockets of its clients.
const SPARE: u32 = 200;
/// Kernel objects that a socket is made of. Directory entries are left out: the whole machine makes
/// and forgets them.
const OBJECTS: [&str; 7] = [
    "TCP",
    "TCPv6",
    "UDP",
    "UDPv6",
    "sock_inode_cache",
    "filp",
    "eventpoll_epi",
];

/// Figure 10; charts 0: the first answer, 1: the call is taken, 2: calls per second, 3: processor
/// time of a call.
pub(super) fn response(context: &Context<'_>, figure: &mut Figure) -> Result<(), Stop> {
    figure.not_run = context.missing(&["sipp"], &[])?;
    if figure.not_run.is_some() {
        return Ok(());
    }
    let folder = Folder::new()?;
    let (light, full) = if context.quick {
        (100, 1000)
    } else {
        (400, 4000)
    };
    for repetition in 0..context.repeat {
        context.settle(figure);
        for carrier in CARRIERS {
            let reports = folder.file("");
            let stage = Stage::new(context, carrier, &[], &reports)?;
            let (first, taken) = lightly(context, &stage, carrier, &folder, light, figure)?;
            figure.charts[0].add(carrier.name(), 0, Sample::of(first));
            figure.charts[1].add(carrier.name(), 0, Sample::of(taken));
            let stage = Stage::new(context, carrier, &[], &reports)?;
            let (rate, cpu) = fully(context, &stage, carrier, &folder, full, figure)?;
            figure.charts[2].add(carrier.name(), 0, Sample::of(rate));
            figure.charts[3].add(carrier.name(), 0, Sample::of(cpu));
            announce(repetition, carrier.name());
        }
    }
    Ok(())
}

/// Figure 11; charts 0: all of it, 1: processes, 2: kernel.
pub(super) fn memory(context: &Context<'_>, figure: &mut Figure) -> Result<(), Stop> {
    figure.not_run = context.missing(&["sipp"], &[])?;
    if figure.not_run.is_some() {
        return Ok(());
    }
    if let Err(why) = socket_objects() {
        figure.not_run = Some(format!("not run: {why}"));
        return Ok(());
    }
    let files = raise_files(u64::from(MOST_CLIENTS + SPARE))?;
    let folder = Folder::new()?;
    let counts: &[u32] = if context.quick {
        &[1_000]
    } else {
        &[1_000, 10_000, MOST_CLIENTS]
    };
    for &clients in counts {
        let Some(split) = Split::new(clients, files) else {
            figure.warn(format!(
                "{clients} clients are left out: {files} open files are allowed here"
            ));
            continue;
        };
        if split.servers > 1 {
            figure.warn(format!(
                "{clients} clients are those of {} servers, because a process may have {files} open files here",
                split.servers
            ));
        }
        context.settle(figure);
        for carrier in CARRIERS {
            // The paper shows one line for both kinds of UD.
            if carrier == Carrier::UdRecord {
                continue;
            }
            let stage = Stage::new(context, carrier, &[], &folder.file(""))?;
            let found = with_clients(context, &stage, carrier, &folder, split, figure)?;
            let all = [
                found.processes + found.kernel,
                found.processes,
                found.kernel,
            ];
            for (chart, bytes) in all.into_iter().enumerate() {
                let value = bytes / f64::from(1 << 20);
                figure.charts[chart].add(carrier.name(), clients, Sample::of(value));
            }
            announce(0, &format!("{clients} clients, {}", carrier.name()));
        }
    }
    Ok(())
}

/// How many processes it takes to have so many clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Split {
    clients: u32,
    /// Client processes, each with an address of its own.
    groups: u32,
    /// One, or one for each group where a process may not have all the sockets.
    servers: u32,
}

impl Split {
    /// None where a process may have so few open files that it would take more addresses than there
    /// are.
    fn new(clients: u32, files: u64) -> Option<Self> {
        let each = u32::try_from(files).unwrap_or(u32::MAX);
        let each = each.checked_sub(SPARE)?.min(PER_ADDRESS);
        let groups = clients.div_ceil(each.max(1));
        let one_server = u64::from(clients + SPARE) <= files;
        let split = Self {
            clients,
            groups,
            servers: if one_server { 1 } else { groups },
        };
        (groups <= GROUPS_MAX).then_some(split)
    }

    /// Clients of a group, counted from zero: as many of each as of the others, or one less.
    fn of_group(self, group: u32) -> u32 {
        (self.clients + group) / self.groups
    }

    /// The server of a group.
    fn server_of(self, group: u32) -> u32 {
        group % self.servers
    }

    /// Clients of a server.
    fn of_server(self, server: u32) -> u32 {
        let groups = (0..self.groups).filter(|group| self.server_of(*group) == server);
        groups.map(|group| self.of_group(group)).sum()
    }
}

/// One socket for all calls, or one for each.
#[derive(Clone, Copy)]
enum Sockets {
    One,
    PerCall,
}

fn transport(carrier: Carrier, sockets: Sockets) -> &'static str {
    match (carrier.is_tcp(), sockets) {
        (false, Sockets::One) => "u1",
        (false, Sockets::PerCall) => "un",
        (true, Sockets::One) => "t1",
        (true, Sockets::PerCall) => "tn",
    }
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(String::from).collect()
}

fn serve(
    context: &Context<'_>,
    stage: &Stage<'_>,
    carrier: Carrier,
    port: u16,
    options: &str,
    figure: &mut Figure,
) -> Result<Running, Stop> {
    // A UDP server has one socket, whatever its clients have.
    let sockets = if carrier.is_tcp() {
        Sockets::PerCall
    } else {
        Sockets::One
    };
    let line = format!(
        "sipp {options} -i {} -p {port} -t {} -nostdin",
        stage.address("b")?,
        transport(carrier, sockets)
    );
    let mut server = stage.start("b", &words(&line), figure)?;
    let plan = Plan {
        server: Vec::new(),
        client: Vec::new(),
        port,
        udp: !carrier.is_tcp(),
        server_ends: false,
    };
    context.runner.listening(stage.lab(), &plan, &mut server)?;
    Ok(server)
}

fn client(
    stage: &Stage<'_>,
    carrier: Carrier,
    (from, port): (&str, u16),
    sockets: Sockets,
    more: &str,
    figure: &mut Figure,
) -> Result<Running> {
    let line = format!(
        "sipp {}:{port} -i {from} -t {} -nostdin {more}",
        stage.address("b")?,
        transport(carrier, sockets)
    );
    stage.start("a", &words(&line), figure)
}

/// The socket limit of every SIPp, below the usual limit of open files.
const MANY_FILES: &str = "-max_socket 500";

/// SIPp's own client and server, until the client has ended well; what the client and the server
/// used.
fn call(
    context: &Context<'_>,
    stage: &Stage<'_>,
    carrier: Carrier,
    more: &str,
    figure: &mut Figure,
) -> Result<[Ended; 2], Stop> {
    let options = format!("-sn uas {MANY_FILES}");
    let mut server = serve(context, stage, carrier, PORT, &options, figure)?;
    let more = format!("-sn uac {MANY_FILES} {more}");
    let from = stage.address("a")?;
    let mut client = client(stage, carrier, (&from, PORT), Sockets::One, &more, figure)?;
    let a = context.runner.wait(&mut client, PATIENCE)?;
    if !a.status.success() {
        return Err(Stop::Failed(client.failure("SIPp", &a)));
    }
    let b = stage.end(&mut server)?;
    stage.check_carried("a", figure)?;
    Ok([a, b])
}

/// Median µs from an INVITE to the first answer, and to the OK.
fn lightly(
    context: &Context<'_>,
    stage: &Stage<'_>,
    carrier: Carrier,
    folder: &Folder,
    calls: u32,
    figure: &mut Figure,
) -> Result<(f64, f64), Stop> {
    let log = folder.file("messages.log");
    let more = format!(
        "-m {calls} -r {LIGHT} -trace_shortmsg -shortmessage_file {}",
        log.display()
    );
    call(context, stage, carrier, &more, figure)?;
    let text = std::fs::read_to_string(&log).context("SIPp wrote no log")?;
    Ok(response_times(&text).context("SIPp's log has no answers")?)
}

/// Calls per second, and the processor time of both ends for a call, µs.
fn fully(
    context: &Context<'_>,
    stage: &Stage<'_>,
    carrier: Carrier,
    folder: &Folder,
    calls: u32,
    figure: &mut Figure,
) -> Result<(f64, f64), Stop> {
    let table = folder.file("client.csv");
    let more = format!(
        "-m {calls} -r 100000 -l {AT_A_TIME} -trace_stat -fd 1 -stf {}",
        table.display()
    );
    let [a, b] = call(context, stage, carrier, &more, figure)?;
    let rate = last(&table, "CallRate(C)").context("SIPp wrote no rate")?;
    let cpu = a.user + a.system + b.user + b.system;
    Ok((rate, cpu.as_secs_f64() * 1e6 / f64::from(calls)))
}

/// Memory of a server, bytes.
struct Memory {
    processes: f64,
    kernel: f64,
}

/// A server, or several that share them, with so many calls that are taken and not ended.
fn with_clients(
    context: &Context<'_>,
    stage: &Stage<'_>,
    carrier: Carrier,
    folder: &Folder,
    split: Split,
    figure: &mut Figure,
) -> Result<Memory, Stop> {
    let tables = |name: &str, count: u32| -> Vec<PathBuf> {
        let all = (0..count).map(|number| folder.file(&format!("{name}{number}.csv")));
        // They are there from the second run on.
        all.inspect(|path| drop(std::fs::remove_file(path)))
            .collect()
    };
    let (ours, theirs) = (
        tables("server", split.servers),
        tables("client", split.groups),
    );
    let scenario = |name: &str, text: String| -> Result<String> {
        let path = folder.file(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(format!("-sf {}", path.display()))
    };
    let uas = scenario("uas.xml", server_scenario())?;
    let uac = scenario("uac.xml", client_scenario())?;
    if !context.quick {
        context.runner.pause(A_MOMENT)?;
    }
    let before = socket_objects()?;
    let load = |clients: u32, table: &Path| {
        // Its watchdog ends a SIPp whose timers are late, as those of six on two processors are.
        format!(
            "-max_socket {} -watchdog_interval 0 -buff_size 1000000 -trace_stat -fd 1 -stf {}",
            clients + SPARE / 2,
            table.display()
        )
    };
    let mut servers = Vec::new();
    for ((number, port), table) in (0..).zip(PORT..).zip(&ours) {
        let options = format!("{uas} {}", load(split.of_server(number), table));
        servers.push(serve(context, stage, carrier, port, &options, figure)?);
    }
    let mut running = Vec::new();
    let addresses = stage.addresses_of_a(split.groups)?;
    for ((group, from), table) in (0..).zip(&addresses).zip(&theirs) {
        let (calls, server) = (split.of_group(group), split.server_of(group));
        let more = format!(
            "{uac} -m {calls} -l {calls} -r {} {}",
            CLIENTS_PER_S / split.groups,
            load(calls, table)
        );
        let port = PORT + u16::try_from(server).unwrap_or(0);
        let place = (from.as_str(), port);
        let started = client(stage, carrier, place, Sockets::PerCall, &more, figure)?;
        running.push(started);
    }
    let wanted = f64::from(split.clients) * ENOUGH;
    let calls = |tables: &[PathBuf]| -> f64 {
        let each = tables.iter().map(|path| last(path, "CurrentCall"));
        each.map(Option::unwrap_or_default).sum()
    };
    let all_there = |_: &Running| Ok((calls(&theirs).min(calls(&ours)) >= wanted).then_some(()));
    let limit = PATIENCE + Duration::from_secs((6 * split.clients / CLIENTS_PER_S).into());
    context
        .runner
        .until(&mut servers[0], "a call of each client", limit, all_there)?;
    // The last calls still send data.
    context.runner.pause(APART * INFOS + A_MOMENT)?;
    let kernel = (socket_objects()? - before).max(0.0);
    let (a, b) = (sockets(stage.lab(), "a")?, sockets(stage.lab(), "b")?);
    let memory = Memory {
        processes: proportional_bytes(stage.lab(), "b")?,
        // Both hosts are this machine: each is counted by how many of the sockets it has.
        kernel: kernel * b / (a + b).max(1.0),
    };
    for client in &mut running {
        stage.end(client)?;
    }
    for server in &mut servers {
        stage.end(server)?;
        stage.check_carried("b", figure)?;
    }
    Ok(memory)
}

/// A call as a scenario of SIPp's: taken, then [`INFOS`] questions with their answers, and no end.
fn client_scenario() -> String {
    let invite = request("INVITE", "<sip:service@[remote_ip]:[remote_port]>", 1);
    let peer = "<sip:service@[remote_ip]:[remote_port]>[peer_tag_param]";
    let mut steps = format!(
        "{}<recv response=\"180\" optional=\"true\"/><recv response=\"200\"/>{}",
        sent(" retrans=\"500\"", &invite),
        sent("", &request("ACK", peer, 1))
    );
    for info in 0..INFOS {
        steps += &format!("<pause milliseconds=\"{}\"/>", APART.as_millis());
        steps += &sent(" retrans=\"500\"", &request("INFO", peer, info + 2));
        steps += "<recv response=\"200\"/>";
    }
    scenario(&(steps + "<pause milliseconds=\"600000\"/>"))
}

/// The other end of [`client_scenario`].
fn server_scenario() -> String {
    let taken = answer("200 OK", ";tag=[pid]SIPpTag[call_number]");
    let mut steps = format!(
        "<recv request=\"INVITE\"/>{}{}<recv request=\"ACK\" optional=\"true\"/>",
        sent("", &answer("180 Ringing", ";tag=[pid]SIPpTag[call_number]")),
        sent(" retrans=\"500\"", &taken)
    );
    for _ in 0..INFOS {
        steps += "<recv request=\"INFO\"/>";
        steps += &sent("", &answer("200 OK", ""));
    }
    scenario(&(steps + "<pause milliseconds=\"600000\"/>"))
}

fn scenario(steps: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<scenario name=\"figure\">{steps}</scenario>\n"
    )
}

fn sent(options: &str, message: &str) -> String {
    format!("<send{options}><![CDATA[\n{message}\n]]></send>\n")
}

fn request(method: &str, to: &str, sequence: u32) -> String {
    format!(
        "{method} sip:service@[remote_ip]:[remote_port] SIP/2.0\n\
         Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]\n\
         From: sipp <sip:sipp@[local_ip]:[local_port]>;tag=[pid]SIPpTag[call_number]\n\
         To: service {to}\n\
         Call-ID: [call_id]\n\
         CSeq: {sequence} {method}\n\
         Contact: <sip:sipp@[local_ip]:[local_port];transport=[transport]>\n\
         Max-Forwards: 70\n\
         Content-Length: 0\n"
    )
}

fn answer(status: &str, tag: &str) -> String {
    format!(
        "SIP/2.0 {status}\n[last_Via:]\n[last_From:]\n[last_To:]{tag}\n[last_Call-ID:]\n[last_CSeq:]\n\
         Contact: <sip:[local_ip]:[local_port];transport=[transport]>\nContent-Length: 0\n"
    )
}

/// Medians of the times from each call's INVITE to its first answer and to its OK, µs.
fn response_times(log: &str) -> Option<(f64, f64)> {
    let mut asked = HashMap::new();
    let mut answered = BTreeSet::new();
    let (mut first, mut taken) = (Vec::new(), Vec::new());
    for line in log.lines() {
        // Day, time, seconds, S or R, the call, CSeq, the first line of the message.
        let columns: Vec<&str> = line.split('\t').collect();
        let [_, _, seconds, way, call, sequence, message] = columns[..] else {
            continue;
        };
        let Some(now) = seconds.parse::<f64>().ok() else {
            continue;
        };
        if !sequence.ends_with("INVITE") {
            continue;
        }
        if way == "S" {
            // One that is repeated was asked when it was asked first.
            asked.entry(call).or_insert(now);
        } else if let Some(begun) = asked.get(call) {
            let time = (now - begun) * 1e6;
            if answered.insert(call) {
                first.push(time);
            }
            if message.contains(" 200 ") {
                taken.push(time);
            }
        }
    }
    median(first).zip(median(taken))
}

/// A column of the last line that SIPp has written to its table.
fn last(table: &Path, column: &str) -> Option<f64> {
    column_of(&std::fs::read_to_string(table).ok()?, column)
}

fn column_of(text: &str, column: &str) -> Option<f64> {
    // A line that is being written does not count.
    let whole = text.rsplit_once('\n')?.0;
    let mut lines = whole.lines();
    let index = lines.next()?.split(';').position(|name| name == column)?;
    lines.next_back()?.split(';').nth(index)?.parse().ok()
}

/// Memory of all processes on a host, bytes: what they share with others counts in part.
fn proportional_bytes(lab: &Lab, host: &str) -> Result<f64> {
    let mut kib = 0.0;
    for pid in lab.processes(host)? {
        let path = format!("/proc/{}/smaps_rollup", pid.as_raw_pid());
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
        let words = line.and_then(|line| line.split_whitespace().next());
        let found: f64 = words
            .and_then(|word| word.parse().ok())
            .ok_or_else(|| anyhow!("{path} has no Pss"))?;
        kib += found;
    }
    Ok(kib * 1024.0)
}

/// Memory of the objects that the machine's sockets are made of, bytes.
fn socket_objects() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/slabinfo")
        .context("cannot read the kernel's memory for sockets: /proc/slabinfo needs root")?;
    Ok(objects(&text))
}

fn objects(slabinfo: &str) -> f64 {
    let bytes = |line: &str| -> Option<f64> {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        // The name; objects in use; all objects; bytes of one.
        let used: f64 = words.next()?.parse().ok()?;
        let size: f64 = words.nth(1)?.parse().ok()?;
        OBJECTS.contains(&name).then_some(used * size)
    };
    slabinfo.lines().filter_map(bytes).sum()
}

/// TCP and UDP sockets of a host.
fn sockets(lab: &Lab, host: &str) -> Result<f64> {
    let read = || std::fs::read_to_string("/proc/thread-self/net/sockstat");
    Ok(in_use(&lab.host(host)?.netns().run(read)??))
}

fn in_use(sockstat: &str) -> f64 {
    let lines = sockstat.lines();
    let counts = lines.filter_map(|line| {
        let rest = line
            .strip_prefix("TCP: inuse ")
            .or_else(|| line.strip_prefix("UDP: inuse "))?;
        rest.split_whitespace().next()?.parse::<f64>().ok()
    });
    counts.sum()
}

/// Raises the limit of open files of this process and its children to `wanted`, or as far as
/// permitted.
fn raise_files(wanted: u64) -> Result<u64> {
    let given = getrlimit(Resource::Nofile).maximum;
    let raise = |maximum: Option<u64>| {
        let limit = Rlimit {
            current: maximum,
            maximum,
        };
        setrlimit(Resource::Nofile, limit).map(|()| maximum.unwrap_or(u64::MAX))
    };
    if given.is_some_and(|given| given < wanted)
        && let Ok(files) = raise(Some(wanted))
    {
        return Ok(files);
    }
    raise(given).context("cannot raise the limit of open files")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_timed_from_its_invite_to_its_first_answer_and_to_its_ok() {
        let log = "\
            d\tt\t100.000000\tS\t1@a\tCSeq:1 INVITE\tINVITE sip:b SIP/2.0\n\
            d\tt\t100.000100\tR\t1@a\tCSeq:1 INVITE\tSIP/2.0 180 Ringing\n\
            d\tt\t100.000250\tR\t1@a\tCSeq:1 INVITE\tSIP/2.0 200 OK\n\
            d\tt\t100.000300\tS\t1@a\tCSeq:1 ACK\tACK sip:b SIP/2.0\n\
            d\tt\t100.000900\tR\t1@a\tCSeq:2 BYE\tSIP/2.0 200 OK\n\
            a line of something else\n";
        let (first, taken) = response_times(log).unwrap();
        assert!((first - 100.0).abs() < 1.0 && (taken - 250.0).abs() < 1.0);
        assert_eq!(response_times(""), None);
    }

    #[test]
    fn the_last_whole_line_of_a_table_counts() {
        let text = "A;CurrentCall;B;\n1;2;3;\n4;5;6;\n7;8";
        assert_eq!(column_of(text, "CurrentCall"), Some(5.0));
        assert_eq!(column_of(text, "C"), None);
        assert_eq!(column_of("A;CurrentCall;\n", "CurrentCall"), None);
    }

    #[test]
    fn clients_are_split_so_that_no_process_has_too_many_files() {
        for (clients, files, groups, servers) in [
            (1_000, 100_200, 1, 1),
            (100_000, 100_200, 8, 1),
            (100_000, 20_000, 8, 8),
            (10_000, 10_200, 1, 1),
            (10_000, 10_199, 2, 2),
        ] {
            let split = Split::new(clients, files).unwrap();
            assert_eq!((split.groups, split.servers), (groups, servers));
            let each = (0..groups).map(|group| split.of_group(group));
            assert_eq!(each.clone().sum::<u32>(), clients);
            assert!(each.max().unwrap() <= PER_ADDRESS);
            let most = (0..servers).map(|server| split.of_server(server)).max();
            assert!(u64::from(most.unwrap() + SPARE) <= files);
        }
        assert_eq!(Split::new(100_000, 1_024), None);
        assert_eq!(Split::new(100_000, 10), None);
    }

    #[test]
    fn kernel_memory_is_that_of_the_objects_of_sockets() {
        let text =
            "slabinfo - version: 2.1\nUDP 10 20 1000 1 1 : x\ndentry 9 9 9 1 1\nfilp 2 4 100 1 1\n";
        assert!((objects(text) - 10_200.0).abs() < 0.5);
        let text = "sockets: used 9\nTCP: inuse 3 orphan 0\nUDP: inuse 4 mem 2\nUDPLITE: inuse 7\n";
        assert!((in_use(text) - 7.0).abs() < 0.5);
    }
}
