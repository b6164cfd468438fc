use super::*;

fn parse(text: &str) -> Result<Scenario> {
    Scenario::parse("test", text)
}

fn error(text: &str) -> String {
    format!("{:#}", parse(text).unwrap_err())
}

#[test]
fn a_round_trip_is_split_in_half_and_a_queue_is_one_product() {
    let scenario = parse("[path]\nrate = \"1Gbit\"\nrtt = \"100ms\"\nloss = 1e-3").unwrap();
    let link = &scenario.forward.link;
    assert_eq!(link.delay_ns, 50_000_000);
    assert_eq!(link.loss, LossModel::Random(1e-3));
    let queue_bytes = Some(12_500_000);
    assert_eq!(
        link.rate,
        Some(Shaper {
            rate_bps: 1_000_000_000,
            queue_bytes,
            queue_packets: None
        })
    );
    assert_eq!(scenario.forward, scenario.reverse);
    assert_eq!((scenario.mtu, scenario.rtt_ns()), (1500, 100_000_000));
    assert_eq!(scenario.host_names(), ["a", "b"]);
}

#[test]
fn the_default_queue_is_clamped() {
    let queue = |rate: &str, rtt: &str| {
        let text = format!("[path]\nrate = \"{rate}\"\nrtt = \"{rtt}\"");
        parse(&text)
            .unwrap()
            .forward
            .link
            .rate
            .unwrap()
            .queue_bytes
            .unwrap()
    };
    assert_eq!(queue("1Gbit", "1ms"), DEFAULT_QUEUE_BYTES_MIN);
    assert_eq!(queue("10Gbit", "100ms"), DEFAULT_QUEUE_BYTES_MAX);
}

#[test]
fn a_direction_overrides_the_path() {
    let scenario = parse(
        "[path]\nrate = \"1Gbit\"\nrtt = \"10ms\"\nloss = \"1%\"\n\
         [path.reverse]\nrate = \"20Mbit\"\ndelay = \"30ms\"\nloss = 0.2\nqueue = \"50packets\"",
    )
    .unwrap();
    assert_eq!(scenario.forward.link.delay_ns, 5_000_000);
    let reverse = scenario.reverse.link;
    assert_eq!(
        (reverse.delay_ns, reverse.loss),
        (30_000_000, LossModel::Random(0.2))
    );
    let queue_packets = Some(50);
    assert_eq!(
        reverse.rate,
        Some(Shaper {
            rate_bps: 20_000_000,
            queue_bytes: None,
            queue_packets
        })
    );
}

#[test]
fn bursts_can_be_asked_for_by_share_and_length() {
    let scenario = parse("[path]\nrtt = \"1ms\"\nloss = { share = 0.01, burst = 8 }").unwrap();
    let LossModel::GilbertElliott {
        p,
        r,
        loss_good,
        loss_bad,
    } = scenario.forward.link.loss
    else {
        panic!("not bursty");
    };
    assert!((p / (p + r) - 0.01).abs() < 1e-12);
    assert!((r - 0.125).abs() < 1e-12 && loss_good.abs() < 1e-12 && (loss_bad - 1.0).abs() < 1e-12);
    assert!(
        error("[path]\nrtt = \"1ms\"\nloss = { share = 0.9, burst = 1 }")
            .contains("cannot be lost")
    );
}

#[test]
fn errors_name_the_line_and_the_remedy() {
    let text = error("[path]\nrtt = \"100ms\"\nrate = \"fast\"");
    assert!(text.contains("line 3") && text.contains("10Gbit"), "{text}");
    let text = error("[path]\nrtt = \"100ms\"\nspeed = 3");
    assert!(text.contains("line 3") && text.contains("speed"), "{text}");
    assert!(error("[path]\nrate = \"1Gbit\"").contains("rtt"));
    assert!(error("[path]\nrtt = \"1ms\"\nqueue = \"1MiB\"").contains("rate"));
    assert!(error("[path]\nrtt = \"1ms\"\nloss = 2").contains("probability"));
    assert!(error("[path]\nrtt = \"1ms\"\nmtu = 100").contains("576"));
    assert!(error("hosts_per_side = 2\n[path]\nrtt = \"1ms\"").contains("gateways"));
    assert!(
        error("[path]\nrtt = \"1ms\"\n[[run]]\nhost = \"c\"\ncommand = \"true\"").contains("a, b")
    );
}

#[test]
fn the_threshold_of_marks_is_bytes_or_a_share_of_the_path() {
    let mark = |text: &str| {
        let text = format!("[path]\nrtt = \"80ms\"\n{text}");
        parse(&text).map(|scenario| scenario.forward.link.ecn_mark_bytes)
    };
    let rate = "rate = \"1Gbit\"\necn_mark =";
    assert_eq!(mark("rate = \"1Gbit\"").unwrap(), None);
    assert_eq!(
        mark(&format!("{rate} \"200KiB\"")).unwrap(),
        Some(200 << 10)
    );
    assert_eq!(
        mark(&format!("{rate} \"0.1bdp\"")).unwrap(),
        Some(1_000_000)
    );
    assert!(mark(&format!("{rate} \"10packets\"")).is_err());
    assert!(mark("ecn_mark = \"200KiB\"").is_err(), "there is no queue");
}

#[test]
fn gateways_stand_between_the_hosts() {
    let scenario =
        parse("topology = \"gateways\"\nhosts_per_side = 2\n[path]\nrtt = \"1ms\"").unwrap();
    assert_eq!(scenario.host_names(), ["a", "a2", "ga", "gb", "b", "b2"]);
}

#[test]
fn every_file_of_the_repository_is_valid() {
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    for entry in std::fs::read_dir(files).unwrap() {
        let path = entry.unwrap().path();
        let scenario = Scenario::load(path.to_str().unwrap());
        assert!(scenario.is_ok(), "{:#}", scenario.unwrap_err());
    }
}

#[test]
fn every_scenario_that_comes_along_is_valid_and_described() {
    for (name, text) in BUILTIN {
        let scenario = Scenario::parse(name, text).unwrap();
        assert!(!scenario.description.is_empty(), "{name}");
    }
    assert!(
        Scenario::load("no-such")
            .unwrap_err()
            .to_string()
            .contains("wan-100ms")
    );
}
