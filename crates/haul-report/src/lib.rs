//! Measurements for people: pictures in SVG, pages in HTML, a few statistics, and the machine that
//! they were made on.
//!
//! Everything is text in and text out, self-contained: no script, no font and no picture from
//! elsewhere. It knows nothing of what was measured.
//!
//! Map: [`svg`] colours and words · [`axis`] numbers on a line · [`chart`] lines with bands, bars,
//! heat maps · [`page`] one HTML file · [`stats`] medians and spread · [`machine`] what it was
//! measured on.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![expect(
    clippy::disallowed_methods,
    reason = "a description of a machine has a date, and its load is seen in time"
)]

pub mod axis;
pub mod chart;
pub mod machine;
pub mod page;
pub mod stats;
pub mod svg;
