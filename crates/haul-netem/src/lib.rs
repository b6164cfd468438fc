//! An emulated network link as a state machine: delay, loss, rate, queue, policer
