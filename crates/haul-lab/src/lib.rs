//! An emulated WAN on one machine: namespaces, emulator, calibration, comparisons
