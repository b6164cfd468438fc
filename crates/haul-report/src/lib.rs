//! Measurements for people: pictures in SVG, pages in HTML, a few statistics, and the machine that
//! they were made on.
//!
//! Pages and pictures are self-contained: they load no script, font or picture from elsewhere. The
//! crate does not know what was measured.
//!
//! Map: [`svg`] colours and words · [`axis`] numbers on a line · [`chart`] lines with bands, bars,
//! heat maps · [`page`] one HTML file · [`stats`] medians and spread · [`machine`] what it was
//! measured on · [`quantity`] rates, sizes and times as people write them · [`date`] dates in UTC ·
//! [`host_port`] `HOST:PORT` · [`text`] its beginning.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![expect(
    clippy::disallowed_methods,
    reason = "a description of a machine has a date, and its load is seen in time"
)]

pub mod axis;
pub mod chart;
pub mod date;
pub mod host_port;
pub mod machine;
pub mod page;
pub mod quantity;
pub mod stats;
pub mod svg;
pub mod text;
