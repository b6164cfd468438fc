//! Where the engine alone drives: what posts cost, how waits end, and what comes after the end.

use std::fs;
use std::time::Duration;

use haul_soft::rnic::{Drive, Options, provider};
use haul_verbs::{Data, Error, Notify, QpState, RecvWr, SendOp, SendWr, WcStatus, WorkCompletion};

use crate::support::{
    End, MEMORY, PATIENCE, TCP, UDT, Wish, connect_to, connected, connected_with, make_qp,
};

/// Long enough for a completion that should not come.
const QUIET: Duration = Duration::from_millis(20);

fn engine(device: usize) -> Wish {
    Wish {
        device,
        drive: Drive::Engine,
        ..Wish::default()
    }
}

/// Processor time of a thread of this process, ns.
fn cpu_ns(task: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{task}/schedstat")).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// Processor time of this thread for 1 GiB that it writes to a peer, message by message.
fn own_cpu_ns(wish: &Wish) -> u64 {
    let (near, far) = connected(wish);
    let before = cpu_ns("thread-self");
    for number in 0..256 {
        near.post(
            number,
            SendOp::RdmaWrite(far.mr.remote(0)),
            0,
            MEMORY as u32,
        );
        near.success(number);
    }
    cpu_ns("thread-self") - before
}

#[test]
fn posts_and_waits_leave_the_sending_to_the_engine() {
    for device in [TCP, UDT] {
        let offloaded = own_cpu_ns(&engine(device));
        let wish = Wish {
            drive: Drive::Caller,
            ..engine(device)
        };
        let driven = own_cpu_ns(&wish);
        // 256 waits, each a wake-up, against a gibibyte given to the kernel.
        assert!(offloaded * 5 < driven, "{offloaded} ns and {driven} ns");
    }
}

/// Two completions, in whichever order.
fn two(end: &End, polls: bool) {
    let mut out = [WorkCompletion::default()];
    let mut found = 0;
    while found < 2 {
        let count = if polls {
            end.cq.poll(&mut out).unwrap()
        } else {
            let count = end.cq.wait(&mut out, Some(PATIENCE)).unwrap();
            assert_eq!(count, 1, "no completion; {:?}", end.qp.failure());
            count
        };
        if count > 0 {
            assert_eq!(out[0].status, WcStatus::Success, "{:?}", end.qp.failure());
            found += 1;
        }
    }
}

#[test]
fn requests_and_answers_wake_whoever_waits_for_them() {
    const ROUNDS: u64 = 5_000;
    for device in [TCP, UDT] {
        let (near, far) = connected(&engine(device));
        let send = |end: &End, at: usize, bytes: &[u8]| {
            let op = SendOp::Send;
            let wr = SendWr::new(at as u64, op, Data::Inline(bytes));
            end.qp.post_send(&[wr]).unwrap();
        };
        far.receive(0, 0, 8);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                far.success(0);
                for number in 0..ROUNDS - 1 {
                    assert_eq!(far.read(0, 8), number.to_le_bytes());
                    far.receive(0, 0, 8);
                    send(&far, 1, &(!number).to_le_bytes());
                    // The answer's, and that of the next request.
                    two(&far, false);
                }
                send(&far, 1, &(!(ROUNDS - 1)).to_le_bytes());
                far.success(1);
            });
            for number in 0..ROUNDS {
                near.receive(2, 64, 8);
                send(&near, 3, &number.to_le_bytes());
                two(&near, number % 4 == 0);
                assert_eq!(near.read(64, 8), (!number).to_le_bytes());
            }
        });
    }
}

#[test]
fn a_channel_announces_what_the_engine_completes() {
    let wish = engine(TCP);
    let (near, far) = connected(&wish);
    let channel = far.context.create_completion_channel().unwrap();
    let cq = far.context.create_cq(16, Some(&channel), 7).unwrap();
    let qp = make_qp(&far.pd, &cq, &wish);
    let third = End::new(&wish.options(), &wish);
    connect_to(&third, &far, &qp, &wish);
    for number in 0..1_000 {
        cq.arm(Notify::Any).unwrap();
        qp.post_recv(&[RecvWr::new(number, far.mr.sge(0, 8))])
            .unwrap();
        third.post(number, SendOp::Send, 0, 8);
        assert_eq!(channel.wait_event(Some(PATIENCE)).unwrap(), Some(7));
        let mut out = [WorkCompletion::default()];
        assert_eq!(cq.poll(&mut out).unwrap(), 1);
        assert_eq!((out[0].wr_id, out[0].status), (number, WcStatus::Success));
        third.success(number);
    }
    near.post(1, SendOp::RdmaWrite(far.mr.remote(0)), 0, 8);
    near.success(1);
}

#[test]
fn what_is_posted_around_the_end_completes_once() {
    for device in [TCP, UDT] {
        for round in 0..50 {
            let (near, far) = connected(&engine(device));
            for number in 0..4 {
                near.receive(number, 0, 8);
            }
            let op = SendOp::RdmaWrite(far.mr.remote(0));
            for number in 4..12 {
                near.post(number, op, 0, MEMORY as u32 / 4);
            }
            if round % 2 == 0 {
                near.qp.disconnect().unwrap();
            } else {
                drop(far.qp);
            }
            // Until the queue pair is in error a post is taken or refused, and then flushed.
            let mut posted = 12;
            for number in 12..40 {
                let wr = SendWr::new(number, op, near.mr.sge(0, 8));
                if near.qp.post_send(&[wr]).is_ok() {
                    posted += 1;
                }
                near.receive(100 + number, 0, 8);
                posted += 1;
                if number % 7 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            let mut seen: Vec<_> = (0..posted).map(|_| near.completion().wr_id).collect();
            let mut out = [WorkCompletion::default()];
            assert_eq!(near.cq.wait(&mut out, Some(QUIET)).unwrap(), 0, "{out:?}");
            let sends = seen.iter().filter(|id| (4..100).contains(*id));
            assert!(sends.is_sorted(), "{seen:?}");
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), posted, "{seen:?}");
            assert_eq!(near.qp.state(), QpState::Err);
        }
    }
}

#[test]
fn queues_that_are_full_refuse_at_once() {
    let wish = Wish {
        depth: 4,
        ..engine(TCP)
    };
    let (near, far) = connected(&wish);
    let wr = |id| SendWr::new(id, SendOp::RdmaWrite(far.mr.remote(0)), near.mr.sge(0, 8));
    let error = near.qp.post_send(&[0, 1, 2, 3, 4].map(wr)).unwrap_err();
    assert_eq!(error.posted, 4);
    assert!(matches!(error.error, Error::Full(_)), "{error}");
    for id in 0..4 {
        near.success(id);
    }
    let receives = [0, 1, 2, 3, 4].map(|id| RecvWr::new(id, near.mr.sge(0, 8)));
    let error = near.qp.post_recv(&receives).unwrap_err();
    assert_eq!(error.posted, 4);
    assert!(matches!(error.error, Error::Full(_)), "{error}");
    let bad = [SendWr::new(
        9,
        SendOp::WriteRecord(far.mr.remote(0)),
        near.mr.sge(0, 8),
    )];
    let error = near.qp.post_send(&bad).unwrap_err();
    assert!(matches!(error.error, Error::Unsupported(_)), "{error}");
}

#[test]
fn a_device_closes_while_its_engine_works() {
    for round in 0..100 {
        let (near, far) = connected(&engine(if round % 2 == 0 { TCP } else { UDT }));
        for number in 0..64 {
            near.post(number, SendOp::RdmaWrite(far.mr.remote(0)), 0, 65_536);
        }
        std::thread::sleep(Duration::from_micros(round * 37));
        if round % 3 == 0 {
            drop(far);
        }
        drop(near);
    }
}

#[test]
fn engines_run_where_they_are_told_to() {
    let mut options = Options::default();
    options.engine_cpus = Some("0".parse().unwrap());
    let open = |options: &Options| {
        let devices = provider(options.clone()).devices().unwrap();
        devices[TCP].open().map(drop)
    };
    let error = open(&options).unwrap_err().to_string();
    assert_eq!(error, "engine_cpus is set, and needs drive = Engine");
    options.drive = Drive::Engine;
    options.engine_cpus = Some("1023".parse().unwrap());
    let error = open(&options).unwrap_err().to_string();
    let wanted = "engine thread: this process may not use all of the processors 1023";
    assert!(error.starts_with(wanted), "{error}");

    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let allowed = |status: &str| {
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.unwrap().trim().to_owned()
    };
    let own = allowed(&status);
    let first = own.split([',', '-']).next().unwrap().to_owned();
    options.engine_cpus = Some(first.parse().unwrap());
    let wish = engine(TCP);
    let (near, far) = connected_with(&options, &wish);
    let engines = fs::read_dir("/proc/self/task").unwrap().filter_map(|task| {
        let path = task.unwrap().path();
        let name = fs::read_to_string(path.join("comm")).ok()?;
        let status = fs::read_to_string(path.join("status")).ok()?;
        name.starts_with("haul-rnic").then(|| allowed(&status))
    });
    // Engines of other tests run anywhere, unless there is only one processor.
    assert!(engines.filter(|list| *list == first).count() >= 2);
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    assert_eq!(allowed(&status), own);
    near.post(1, SendOp::RdmaWrite(far.mr.remote(0)), 0, 8);
    near.success(1);
}
