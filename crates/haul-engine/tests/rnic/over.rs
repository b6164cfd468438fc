//! What the tests of `haul-soft` run over here: an engine.

pub(crate) use crate::shared::provider;

/// Tests of what these devices do not do, and why.
pub(crate) const NOT_HERE: [(&str, &str); 2] = [
    (
        "endpoints_that_know_each_other_connect_without_events",
        "an engine's devices have no endpoints (DeviceCaps::ENDPOINTS)",
    ),
    (
        "an_overflowing_completion_queue_ends_its_queue_pairs",
        "an engine's completion queues hold twice as many as were asked for",
    ),
];

/// Makes each function a test over TCP and one over UDT.
macro_rules! over_both {
    ($($name:ident),* $(,)?) => {
        crate::over::over_one!(over_tcp, TCP, $($name),*);
        crate::over::over_one!(over_udt, UDT, $($name),*);
    };
}
pub(crate) use over_both;

macro_rules! over_one {
    ($module:ident, $device:ident, $($name:ident),*) => {
        mod $module {
            $(#[test]
            fn $name() {
                if let Some((_, why)) = crate::over::NOT_HERE.iter().find(|(name, _)| *name == stringify!($name)) {
                    println!("SKIPPED: {why}");
                    return;
                }
                super::$name(&crate::support::Wish {
                    device: crate::support::$device,
                    drive: haul_soft::rnic::Drive::Engine,
                    ..Default::default()
                });
            })*
        }
    };
}
pub(crate) use over_one;
