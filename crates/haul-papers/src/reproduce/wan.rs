//! "Wide-Area Performance Profiling of 10GigE and InfiniBand Technologies", Rao, Yu, Wing, Poole
//! and Vetter, SC 2008, §III and IV: TCP with many streams and RDMA over thousands of miles.
//!
//! Its paths had 10 Gbit/s; these have a twentieth, which this machine carries. BIC, HTCP and their
//! like are the kernel's where it has them, and else those of `haul-cc` over UDT, whose windows are
//! the kernel's (docs/congestion.md). RDMA is iWARP over UDT.

mod profile;
mod rdma;
mod tcp;

use super::experiment::Experiment;

/// The paper.
pub(super) const TITLE: &str = "Wide-Area Performance Profiling of 10GigE and InfiniBand Technologies (Rao, Yu, Wing, Poole, \
                                Vetter, SC 2008), sections III and IV";

/// The figures.
pub(super) fn experiments() -> Vec<Experiment> {
    [tcp::experiments(), rdma::experiments()]
        .into_iter()
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paper_has_each_figure_once() {
        let labels = experiments().into_iter().map(|one| (one.about)().label());
        let figures = (2..=10).map(|number| format!("figure {number}"));
        assert_eq!(labels.collect::<Vec<_>>(), figures.collect::<Vec<_>>());
    }
}
