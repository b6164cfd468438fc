//! Files that arrive block by block: verification, repair and publication.

use std::sync::Arc;

use super::state::{
    ATTEMPTS, Blockwise, Doubtful, IN_REPAIR, Incoming, ReceiverOutcome, Session, State,
};
use crate::fault::{Code, Fault};
use crate::report::Event;
use crate::session::durable::Job;
use crate::session::sender::stale;
use crate::sink::BlockId;
use crate::tree::Digest;
use crate::wire::{self, Digests, Locate, Message, PieceRun, Pieces, REPAIRS_MAX, Repair, Run};

impl Session<'_> {
    /// Returns a file that arrives block by block; `None` if it is finished, as one that failed, or
    /// not requested yet: the sender sends digests of early data that this end has discarded.
    pub(super) fn blockwise(&mut self, file: u32) -> Result<Option<&mut Blockwise>, Fault> {
        if file >= self.next {
            return Err(Fault::protocol("no such file"));
        }
        match self.files.get_mut(&file).map(|file| &mut file.state) {
            Some(State::Blocks(blocks)) => Ok(Some(blocks)),
            Some(State::Waiting(_)) | None => Ok(None),
            Some(_) => Err(Fault::protocol("a message about a file that moves whole")),
        }
    }

    pub(super) fn on_digests(
        &mut self,
        message: &Digests,
        outcome: &mut ReceiverOutcome,
    ) -> Result<(), Fault> {
        let (digests, rest) = message.digests.as_chunks::<32>();
        let Some(known) = self.blockwise(message.file)? else {
            return Ok(());
        };
        if !rest.is_empty() || message.first as usize + digests.len() > known.digests.len() {
            return Err(Fault::protocol(
                "the peer sent digests of blocks that no file has",
            ));
        }
        for (block, digest) in (message.first..).zip(digests) {
            let id = BlockId {
                file: message.file,
                block,
            };
            let Some(blocks) = self.blockwise(message.file)? else {
                return Ok(());
            };
            if blocks.digests[block as usize].is_none() {
                blocks.doubtful.entry(block).or_default().announced = Some(*digest);
                self.compare(id, outcome)?;
            }
        }
        Ok(())
    }

    /// Compares the two digests of a block once both are known.
    pub(super) fn compare(
        &mut self,
        id: BlockId,
        outcome: &mut ReceiverOutcome,
    ) -> Result<(), Fault> {
        let Some(incoming) = self.blockwise(id.file)? else {
            return Ok(());
        };
        let Some(doubtful) = incoming.doubtful.get_mut(&id.block) else {
            return Ok(());
        };
        let (Some(announced), Some(computed)) = (doubtful.announced, doubtful.computed) else {
            return Ok(());
        };
        if announced == computed {
            let was_in_repair = doubtful.pieces.is_some();
            let is_noted = doubtful.is_left && !incoming.is_stale;
            let same = match doubtful.is_old {
                true => incoming.target.blocks.range(id.block, 1).1,
                false => 0,
            };
            incoming.doubtful.remove(&id.block);
            incoming.digests[id.block as usize] = Some(computed);
            incoming.unverified -= 1;
            self.present_before += same;
            if was_in_repair {
                self.in_repair = self.in_repair.saturating_sub(1);
                self.in_repair_max = (self.in_repair_max + 1).min(IN_REPAIR);
            }
            if !is_noted {
                self.job(Job::Verified {
                    file: id.file,
                    block: (id.block, computed),
                })?;
            }
            self.locate()?;
            return self.publish_if_due(id.file);
        }
        if doubtful.is_left {
            *doubtful = Doubtful::default();
            return self.replace(id, outcome);
        }
        *doubtful = Doubtful {
            pieces: Some(Vec::new()),
            is_old: doubtful.is_old,
            ..Doubtful::default()
        };
        self.damaged.push_back(id);
        self.locate()
    }

    /// Requests the digests of the pieces of damaged blocks, for as many as may be in repair.
    pub(super) fn locate(&mut self) -> Result<(), Fault> {
        while self.in_repair < self.in_repair_max
            && let Some(BlockId { file, block }) = self.damaged.pop_front()
        {
            self.in_repair += 1;
            self.link.send(&Message::Locate(Locate { file, block }))?;
        }
        Ok(())
    }

    /// Takes the digests of the pieces of a damaged block.
    pub(super) fn on_pieces(&mut self, message: &Pieces) -> Result<(), Fault> {
        let id = BlockId {
            file: message.file,
            block: message.block,
        };
        let Some(incoming) = self.blockwise(id.file)? else {
            return Ok(());
        };
        let blocks = incoming.target.blocks;
        let doubtful = Some(incoming).and_then(|incoming| {
            let doubtful = incoming.doubtful.get_mut(&id.block)?;
            Some((doubtful, blocks.pieces(id.block)))
        });
        let (digests, rest) = message.digests.as_chunks::<32>();
        match doubtful {
            Some((doubtful, pieces))
                if doubtful.pieces.as_ref().is_some_and(Vec::is_empty)
                    && rest.is_empty()
                    && digests.len() == pieces.count() as usize =>
            {
                doubtful.pieces = Some(digests.to_vec());
                self.sink.rehash(id);
                Ok(())
            }
            _ => Err(Fault::protocol(
                "the peer sent digests of pieces that were not requested",
            )),
        }
    }

    /// Requests again the pieces whose digests differ from the sender's.
    pub(super) fn compare_pieces(
        &mut self,
        id: BlockId,
        found: &[Digest],
        outcome: &mut ReceiverOutcome,
    ) -> Result<(), Fault> {
        let Some(incoming) = self.blockwise(id.file)? else {
            return Ok(());
        };
        let target = Arc::clone(&incoming.target);
        let Some(doubtful) = incoming.doubtful.get_mut(&id.block) else {
            return Ok(());
        };
        let Some(announced) = &doubtful.pieces else {
            return Ok(());
        };
        let mut runs: Vec<PieceRun> = Vec::new();
        for piece in (0..).zip(announced.iter().zip(found)) {
            match (piece, runs.last_mut()) {
                ((_, (announced, found)), _) if announced == found => {}
                ((index, _), Some(run)) if run.first + run.count == index => run.count += 1,
                ((first, _), _) => runs.push(PieceRun { first, count: 1 }),
            }
        }
        let pieces = target.blocks.pieces(id.block);
        if runs.is_empty() {
            let digest = Some(pieces.block(announced));
            (doubtful.announced, doubtful.computed) = (digest, digest);
            return self.compare(id, outcome);
        }
        if std::mem::take(&mut doubtful.is_old) {
            if self.repairs + runs.len() > REPAIRS_MAX / 2 {
                runs = vec![all_of(&runs)];
            } else {
                self.repairs += runs.len();
            }
            let bytes = self.sink.append_pieces(id, &runs)?;
            self.present_before += pieces.len() - bytes;
            return self.ask_pieces(id, runs);
        }
        doubtful.attempts += 1;
        let (from, name) = (pieces.range(runs[0].first, 1).0, &target.shown);
        if doubtful.attempts > ATTEMPTS {
            let place = format!("data from byte {from} of '{name}' on");
            let text = format!("{place} arrived damaged {} times", doubtful.attempts);
            let fault = Fault::new(Code::Integrity, text)
                .hint("check the memory and network adapters of both ends");
            return self.fail(id.file, &fault, outcome);
        }
        if !std::mem::replace(&mut incoming.is_damaged, true) {
            let note =
                format!("data from byte {from} of '{name}' on arrived damaged; repairing it");
            self.observer.event(&Event::Note(&note));
        }
        self.repairs += runs.len();
        if self.repairs > REPAIRS_MAX {
            return Err(too_much_damage());
        }
        self.repaired += self.sink.append_pieces(id, &runs)?;
        self.ask_pieces(id, runs)
    }

    fn ask_pieces(&self, id: BlockId, runs: Vec<PieceRun>) -> Result<(), Fault> {
        let BlockId { file, block } = id;
        let repair = Repair { file, block, runs };
        self.link.send(&Message::Repair(repair))
    }

    /// Requests a block that an earlier session left here and that differs from the source.
    pub(super) fn replace(
        &mut self,
        id: BlockId,
        outcome: &mut ReceiverOutcome,
    ) -> Result<(), Fault> {
        let Some(incoming) = self.blockwise(id.file)? else {
            return Ok(());
        };
        let target = Arc::clone(&incoming.target);
        if !std::mem::replace(&mut incoming.is_stale, true) {
            target.forget()?;
            let verified = (0..).zip(&incoming.digests);
            let verified: Vec<_> = verified
                .filter_map(|(block, digest)| Some((block, (*digest)?)))
                .collect();
            for block in verified {
                self.job(Job::Verified {
                    file: id.file,
                    block,
                })?;
            }
            self.observer.event(&Event::Note(&stale(&target.shown)));
        }
        let (_, len) = target.blocks.range(id.block, 1);
        self.present_before = self.present_before.saturating_sub(len);
        if let Some(operand) = outcome.operands.get_mut(&id.file) {
            operand.present = operand.present.saturating_sub(len);
        }
        let run = Run {
            file: id.file,
            first: id.block,
            count: 1,
        };
        self.ask(vec![run])
    }

    /// Makes a file durable once all its blocks are verified, and publishes it once the sender has
    /// committed all its requested runs.
    pub(super) fn publish_if_due(&mut self, file: u32) -> Result<(), Fault> {
        let Some(incoming) = self.files.get_mut(&file) else {
            return Ok(());
        };
        let Incoming { entry, state } = &mut **incoming;
        let State::Blocks(incoming) = state else {
            return Ok(());
        };
        if incoming.unverified > 0 || incoming.is_publishing {
            return Ok(());
        }
        let is_settled = incoming.root.is_some();
        let root = *incoming.root.get_or_insert_with(|| {
            let digests: Vec<Digest> = incoming.digests.iter().flatten().copied().collect();
            *incoming.target.blocks.root(&digests).as_bytes()
        });
        let commit = incoming.commit.filter(|commit| commit.end >= incoming.end);
        incoming.is_publishing = commit.is_some();
        if let Some(commit) = commit
            && entry.seal(&self.terms.binding, &root) != commit.seal
        {
            return Err(wire::damaged());
        }
        if !is_settled {
            self.job(Job::Settle { file })?;
        }
        if commit.is_some() {
            self.job(Job::Publish { file })?;
        }
        Ok(())
    }
}

/// Returns the run from the first piece of these runs to the last.
fn all_of(runs: &[PieceRun]) -> PieceRun {
    let end = runs.last().map_or(0, |run| run.first + run.count);
    let first = runs.first().map_or(0, |run| run.first);
    PieceRun {
        first,
        count: end - first,
    }
}

pub(super) fn too_much_damage() -> Fault {
    Fault::new(
        Code::PeerGone,
        "too much arrived damaged for one connection",
    )
}
