//! A snapshot as OpenMetrics text.

use std::fmt;

use haul_admin::openmetrics::{Family, Labels, flag, info};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::snapshot::{Shown, Snapshot, Way};
use crate::rates::ClassTotal;
use crate::status::{Connection, Limit, Path, Role, Segment};

fn gateway_families() -> [Family<Snapshot>; 16] {
    type Of = Family<Snapshot>;
    [
        Of::gauge("uptime", "Time since the gateway was started", |it| {
            it.uptime_s
        })
        .seconds(),
        Of::gauge("draining", "1 while the gateway drains", |it| {
            flag(it.is_draining)
        }),
        Of::gauge("memory", "Memory for slabs", |it| it.memory as f64).bytes(),
        Of::gauge(
            "memory_left",
            "Memory for slabs that no session has taken",
            |it| it.memory_left as f64,
        )
        .bytes(),
        Of::gauge("sessions_limit", "Most sessions at a time", |it| {
            it.sessions_max as f64
        }),
        Of::gauge("sessions_active", "Sessions at present", |it| {
            it.sessions.len() as f64
        }),
        Of::gauge(
            "guests_active",
            "Control connections that have not asked for a session",
            |it| it.pending_peers as f64,
        ),
        Of::gauge(
            "connections_active",
            "Applications' connections at present",
            |it| it.sessions.iter().map(connections).sum::<usize>() as f64,
        ),
        Of::counter("sessions", "Sessions opened", |it| {
            it.totals.sessions as f64
        }),
        Of::counter("sessions_refused", "Sessions refused", |it| {
            it.totals.sessions_refused as f64
        }),
        Of::counter(
            "sessions_lost",
            "Sessions that ended because a gateway was lost or failed",
            |it| it.totals.sessions_lost as f64,
        ),
        Of::counter(
            "connections",
            "Applications' connections accepted or made",
            |it| it.totals.connections as f64,
        ),
        Of::counter(
            "connections_refused",
            "Applications' connections refused",
            |it| it.totals.connections_refused as f64,
        ),
        Of::counter(
            "connections_lost",
            "Applications' connections reset because their session was lost",
            |it| it.totals.connections_lost as f64,
        ),
        Of::counter("reloads", "Configurations applied", |it| {
            it.totals.reloads as f64
        }),
        Of::counter("reloads_failed", "Configurations rejected", |it| {
            it.totals.reloads_failed as f64
        }),
    ]
}

fn session_families() -> [Family<Shown>; 4] {
    type Of = Family<Shown>;
    [
        Of::gauge(
            "session_open",
            "1 while all segments of the session at this gateway are open",
            |it| flag(it.status.state == "open"),
        ),
        Of::gauge("session_age", "Time since the session was begun", |it| {
            it.age_s
        })
        .seconds(),
        Of::gauge(
            "session_memory",
            "Memory that the session holds for slabs",
            |it| it.status.memory as f64,
        )
        .bytes(),
        Of::gauge(
            "session_connections",
            "Applications' connections in the session",
            |it| connections(it) as f64,
        ),
    ]
}

fn segment_families() -> [Family<Segment>; 16] {
    type Of = Family<Segment>;
    [
        Of::counter("segment_received", "Bytes received", |it| {
            it.octets_in as f64
        })
        .bytes(),
        Of::counter("segment_sent", "Bytes sent", |it| it.octets_out as f64).bytes(),
        Of::gauge(
            "segment_receive_rate",
            "Recent receiving rate, bytes per second",
            |it| it.rate_in,
        ),
        Of::gauge(
            "segment_send_rate",
            "Recent sending rate, bytes per second",
            |it| it.rate_out,
        ),
        Of::gauge(
            "segment_ring_used",
            "Bytes of the ring that are occupied",
            |it| it.ring_used as f64,
        )
        .bytes(),
        Of::gauge("segment_ring_size", "Bytes of the ring in use", |it| {
            it.ring_size as f64
        })
        .bytes(),
        Of::gauge(
            "segment_arena_used",
            "Bytes of the arena that are promised or occupied",
            |it| it.arena_used as f64,
        )
        .bytes(),
        Of::gauge("segment_arena_size", "Bytes of the arena", |it| {
            it.arena_size as f64
        })
        .bytes(),
        Of::gauge(
            "segment_window_used",
            "Bytes announced and not acknowledged",
            |it| it.window_used as f64,
        )
        .bytes(),
        Of::gauge(
            "segment_window_size",
            "Limit of bytes announced and not acknowledged",
            |it| it.window_size.map_or(f64::INFINITY, |size| size as f64),
        )
        .bytes(),
        Of::gauge(
            "segment_slabs_unacknowledged",
            "Slabs announced and not acknowledged",
            |it| it.slabs_unacked as f64,
        ),
        Of::gauge("segment_posts", "Reads and writes in flight", |it| {
            it.posts as f64
        }),
        Of::gauge("segment_lanes", "Data connections that are up", |it| {
            it.lanes as f64
        }),
        Of::gauge(
            "segment_round_trip",
            "Round-trip time without queueing",
            |it| it.rtt_ns as f64 / 1e9,
        )
        .seconds(),
        Of::counter("segment_resent", "Packets retransmitted", |it| {
            it.resent as f64
        }),
        Of::counter(
            "segment_out_of_order",
            "Packets that arrived out of order: earlier ones were lost or overtaken",
            |it| it.out_of_order as f64,
        ),
    ]
}

fn connection_families() -> [Family<Connection>; 3] {
    type Of = Family<Connection>;
    [
        Of::counter("connection_received", "Bytes from the application", |it| {
            it.octets_in as f64
        })
        .bytes(),
        Of::counter("connection_sent", "Bytes to the application", |it| {
            it.octets_out as f64
        })
        .bytes(),
        Of::gauge(
            "connection_waiting",
            "1 while the application is held back",
            |it| flag(it.waits),
        ),
    ]
}

fn path_families() -> [Family<Path>; 1] {
    type Of = Family<Path>;
    [Of::gauge(
        "path_up",
        "1 while the gateway reports that the path is up",
        |it| flag(it.state == "up"),
    )]
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let own = vec![
            ("name", self.name.clone()),
            ("version", self.version.to_owned()),
        ];
        info(encoder, "gateway", "The gateway", &[own])?;
        let none = Labels::new();
        for family in gateway_families() {
            family.encode(encoder, [(&none, self)])?;
        }

        let refusals = self.totals.refusals.iter();
        let refusals =
            refusals.map(|(reason, count)| (vec![("reason", (*reason).to_owned())], count));
        let refusals: Vec<(Labels, &u64)> = refusals.collect();
        let help = "Applications' connections refused, by reason";
        let refused = Family::counter("refusals", help, |count: &u64| *count as f64);
        let samples = refusals.iter().map(|(labels, count)| (labels, *count));
        refused.encode(encoder, samples)?;

        let of_way = |way: &Way| vec![("way", way.health.way.clone())];
        let labels: Vec<Labels> = self.ways.iter().map(of_way).collect();
        let help = "1 while sessions can be opened by the way";
        let up = Family::gauge("way_up", help, |way: &Way| flag(way.health.is_up));
        up.encode(encoder, labels.iter().zip(&self.ways))?;

        let of_class = |class: &ClassTotal| vec![("class", class.name.clone())];
        let labels: Vec<Labels> = self.classes.iter().map(of_class).collect();
        let help = "Bytes that the sessions of a class have sent to other gateways";
        let sent = Family::counter("class_sent", help, |class: &ClassTotal| class.bytes as f64);
        sent.bytes()
            .encode(encoder, labels.iter().zip(&self.classes))?;

        let labels: Vec<Labels> = self.sessions.iter().map(of_session).collect();
        let about: Vec<Labels> = self.sessions.iter().map(about).collect();
        info(
            encoder,
            "session",
            "A session, its hops from the opener to the terminus",
            &about,
        )?;
        for family in session_families() {
            family.encode(encoder, labels.iter().zip(&self.sessions))?;
        }

        let segments: Vec<(Labels, &Segment)> = self.sessions.iter().flat_map(segments).collect();
        for family in segment_families() {
            let samples = segments.iter().map(|(labels, segment)| (labels, *segment));
            family.encode(encoder, samples)?;
        }
        encode_limits(encoder, &segments)?;

        let shown = self.sessions.iter().flat_map(|session| {
            let connections = session.status.connections.iter();
            connections.map(|connection| (of_connection(session, connection), connection))
        });
        let shown: Vec<(Labels, &Connection)> = shown.collect();
        for family in connection_families() {
            let samples = shown
                .iter()
                .map(|(labels, connection)| (labels, *connection));
            family.encode(encoder, samples)?;
        }

        let paths: Vec<(Labels, &Path)> = self.sessions.iter().flat_map(paths).collect();
        for family in path_families() {
            let samples = paths.iter().map(|(labels, path)| (labels, *path));
            family.encode(encoder, samples)?;
        }
        Ok(())
    }
}

/// Writes one sample for each limit: 1 for the one that applies.
fn encode_limits(
    encoder: &mut DescriptorEncoder<'_>,
    segments: &[(Labels, &Segment)],
) -> fmt::Result {
    if segments.is_empty() {
        return Ok(());
    }
    let help = "1 for what limits the segment";
    let mut family = encoder.encode_descriptor("segment_limit", help, None, MetricType::Gauge)?;
    for (labels, segment) in segments {
        for limit in Limit::ALL {
            let labels = (labels.clone(), [("limit", limit.name())]);
            let mut metric = family.encode_family(&labels)?;
            metric.encode_gauge(&flag(segment.limit == limit))?;
        }
    }
    Ok(())
}

fn of_session(session: &Shown) -> Labels {
    vec![("session", session.status.session.clone())]
}

fn about(session: &Shown) -> Labels {
    let status = &session.status;
    vec![
        ("session", status.session.clone()),
        ("role", status.role.name().to_owned()),
        ("state", status.state.clone()),
        ("hops", status.hops.join(" ")),
    ]
}

fn segments(session: &Shown) -> impl Iterator<Item = (Labels, &Segment)> {
    let status = &session.status;
    // An opener's only segment leads to the terminus.
    let sides = match status.role {
        Role::Opener => ["terminus", "terminus"],
        _ => ["opener", "terminus"],
    };
    let pairs = sides.into_iter().zip(&status.segments);
    pairs.map(|(towards, segment)| {
        let channel = segment.channel.map(|channel| channel.to_string());
        let labels = vec![
            ("session", status.session.clone()),
            ("towards", towards.to_owned()),
            ("peer", segment.peer.clone()),
            ("channel", channel.unwrap_or_default()),
        ];
        (labels, segment)
    })
}

fn paths(session: &Shown) -> impl Iterator<Item = (Labels, &Path)> {
    let paths = session.status.paths.iter().enumerate();
    paths.map(|(number, path)| {
        let labels = vec![
            ("session", session.status.session.clone()),
            ("number", number.to_string()),
            ("gateway", path.gateway.clone()),
            ("rules", path.rules.clone()),
        ];
        (labels, path)
    })
}

fn of_connection(session: &Shown, connection: &Connection) -> Labels {
    vec![
        ("session", session.status.session.clone()),
        ("connection", connection.number.to_string()),
        ("from", connection.from.clone()),
        ("to", connection.to.clone()),
    ]
}

fn connections(session: &Shown) -> usize {
    session.status.connections.len() + session.status.more_connections
}
