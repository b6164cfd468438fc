//! What the tests run over: the devices of this process.

pub(crate) use haul_soft::rnic::provider;

/// Makes each function a test over TCP and one over UDT: plain, protected, and with an engine that
/// alone drives.
macro_rules! over_both {
    ($($name:ident),* $(,)?) => {
        crate::over::over_one!(over_tcp, TCP, false, Caller, $($name),*);
        crate::over::over_one!(over_udt, UDT, false, Caller, $($name),*);
        crate::over::over_one!(over_protected_tcp, TCP, true, Caller, $($name),*);
        crate::over::over_one!(over_protected_udt, UDT, true, Caller, $($name),*);
        crate::over::over_one!(over_tcp_by_engine, TCP, false, Engine, $($name),*);
        crate::over::over_one!(over_udt_by_engine, UDT, false, Engine, $($name),*);
        crate::over::over_one!(over_protected_udt_by_engine, UDT, true, Engine, $($name),*);
    };
}
pub(crate) use over_both;

macro_rules! over_one {
    ($module:ident, $device:ident, $protected:expr, $drive:ident, $($name:ident),*) => {
        mod $module {
            $(#[test]
            fn $name() {
                super::$name(&crate::support::Wish {
                    device: crate::support::$device,
                    protected: $protected,
                    drive: haul_soft::rnic::Drive::$drive,
                    ..Default::default()
                });
            })*
        }
    };
}
pub(crate) use over_one;
