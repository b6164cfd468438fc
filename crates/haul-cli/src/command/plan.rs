//! `--dry-run` of transfers.

use haul::choice::Choice;
use haul::client::{Config, Policy};
use haul::fault::Fault;
use haul::sync::{self as engine, Finding, Guards, How, Pair};

use crate::output::plan::PlanOutput;

/// Prints what a transfer of these pairs into `destination`, and the deletion after it, would do.
pub(super) fn dry_run(
    config: &Config,
    pairs: &[Pair],
    destination: &[u8],
    choice: &Choice,
    how: How,
    guards: Option<&Guards>,
    output: &mut PlanOutput,
) -> Result<(), Fault> {
    let config = engine::enter(config)?;
    if let Some(first) = pairs.first() {
        output.note_room(engine::check_destination(
            &config,
            first.source,
            destination,
        )?);
    }
    let how = How {
        wants_extra: guards.is_some(),
        ..how
    };
    pairs.iter().try_for_each(|pair| {
        let mut each = |finding: &Finding<'_>| output.finding(&pair.name, finding);
        let (plan, _) = engine::examine(&config, pair, choice, how, &mut each)?;
        let checked = guards.map_or(Ok(()), |guards| guards.check(pair, &plan));
        output.add(&plan);
        checked
    })
}

/// Returns how the sources and targets of a transfer are compared.
pub(super) fn how(policy: Policy) -> How {
    How {
        recheck: policy.recheck,
        adds_only: !policy.replace,
        ..How::default()
    }
}
