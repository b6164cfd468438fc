//! Power losses: what was written and not synced is on the disk in part, in any order.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::*;

const BLOCK: usize = 9000;

struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) >> 1).unwrap() % count
    }

    fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }
}

/// A file whose disk writes sectors whole, each when it likes until a sync.
#[derive(Clone)]
struct Disk(Rc<RefCell<Sectors>>);

struct Sectors {
    sector: usize,
    /// As the process sees it.
    now: Vec<u8>,
    /// As it was at the latest sync.
    durable: Vec<u8>,
    /// The lengths that it has had since.
    lengths: Vec<usize>,
    /// What has been written to each sector since.
    written: BTreeMap<usize, Vec<Vec<u8>>>,
    /// What lay on the disk before: a file that becomes longer may show it.
    stale: Vec<Vec<u8>>,
    /// It says that it has synced, and has not.
    lies: bool,
}

impl Disk {
    fn new(sector: usize, lies: bool) -> Self {
        Self(Rc::new(RefCell::new(Sectors {
            sector,
            now: Vec::new(),
            durable: Vec::new(),
            lengths: Vec::new(),
            written: BTreeMap::new(),
            stale: Vec::new(),
            lies,
        })))
    }

    fn lose_power(&self, random: &mut Random) {
        let mut disk = self.0.borrow_mut();
        let disk = &mut *disk;
        let mut lengths = std::mem::take(&mut disk.lengths);
        lengths.push(disk.durable.len());
        let mut found = vec![0; *random.pick(&lengths)];
        for (index, sector) in found.chunks_mut(disk.sector).enumerate() {
            let at = index * disk.sector;
            let mut versions = disk.written.remove(&index).unwrap_or_default();
            if at < disk.durable.len() {
                let end = disk.durable.len().min(at + disk.sector);
                versions.push(disk.durable[at..end].to_vec());
            } else {
                let stale = disk.stale.iter().filter(|old| old.len() > at);
                versions.extend(stale.map(|old| old[at..old.len().min(at + disk.sector)].to_vec()));
                versions.push(Vec::new());
            }
            for (byte, is) in sector.iter_mut().zip(random.pick(&versions)) {
                *byte = *is;
            }
        }
        disk.written.clear();
        disk.durable.clone_from(&found);
        disk.now = found;
    }
}

impl Storage for Disk {
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.borrow().now.len() as u64)
    }

    fn read_exact_at(&self, buf: &mut [u8], position: u64) -> io::Result<()> {
        let at = usize::try_from(position).unwrap();
        let disk = self.0.borrow();
        let bytes = disk.now.get(at..at + buf.len());
        buf.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_all_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        let mut disk = self.0.borrow_mut();
        let disk = &mut *disk;
        let at = usize::try_from(position).unwrap();
        let end = at + bytes.len();
        if disk.now.len() < end {
            disk.now.resize(end, 0);
            disk.lengths.push(end);
        }
        disk.now[at..end].copy_from_slice(bytes);
        for index in at / disk.sector..end.div_ceil(disk.sector) {
            let from = index * disk.sector;
            let sector = disk.now[from..disk.now.len().min(from + disk.sector)].to_vec();
            disk.written.entry(index).or_default().push(sector);
        }
        Ok(())
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        let mut disk = self.0.borrow_mut();
        let length = usize::try_from(length).unwrap();
        let before = disk.now.clone();
        if length < before.len() {
            disk.stale.push(before);
        }
        disk.now.resize(length, 0);
        disk.lengths.push(length);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut disk = self.0.borrow_mut();
        if !disk.lies {
            disk.durable = disk.now.clone();
            disk.lengths.clear();
            disk.written.clear();
        }
        Ok(())
    }
}

/// Which file is not synced when it says so.
#[derive(Clone, Copy, PartialEq)]
enum Lies {
    Neither,
    Data,
    Log,
}

/// A receiver, of which nothing but its two files survives.
struct Receiver {
    random: Random,
    data: Disk,
    log: Disk,
    blocks: u32,
    subject: Subject,
    /// Versions of the blocks of the source, which a new time of the source increases.
    version: u64,
}

fn content(version: u64, block: u32) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&version.to_le_bytes());
    hasher.update(&block.to_le_bytes());
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

impl Receiver {
    fn new(seed: u64, lies: Lies) -> Self {
        let mut random = Random(seed);
        let sector = *random.pick(&[512, 4096]);
        let blocks = 1 + u32::try_from(random.below(12)).unwrap();
        Self {
            random,
            data: Disk::new(sector, lies == Lies::Data),
            log: Disk::new(sector, lies == Lies::Log),
            blocks,
            subject: Subject {
                size: u64::from(blocks) * BLOCK as u64,
                modified: FileTime {
                    seconds: 1,
                    nanos: 0,
                },
                inode: 1,
                layout: 0,
            },
            version: 0,
        }
    }

    fn id(&mut self) -> [u8; 16] {
        [0; 16].map(|_: u8| u8::try_from(self.random.below(256)).unwrap())
    }

    /// One session, which a power loss ends; returns what it finds that is not there.
    fn session(&mut self) -> Result<(), String> {
        let id = self.id();
        let (mut journal, found) = Journal::open(self.log.clone(), self.subject, id).unwrap();
        let mut verified = BTreeMap::new();
        let is_whole = self.data.length().unwrap() == self.subject.size;
        match found {
            Content::Blocks(found) if is_whole => verified.extend(found),
            // The length of the part file was lost.
            Content::Blocks(_) => {
                let id = self.id();
                journal.restart(id).unwrap();
            }
            Content::OtherSource | Content::Nothing => {}
        }
        for (block, digest) in &verified {
            let mut bytes = vec![0; BLOCK];
            let at = u64::from(*block) * BLOCK as u64;
            self.data.read_exact_at(&mut bytes, at).unwrap();
            if *blake3::hash(&bytes).as_bytes() != *digest {
                return Err(format!("block {block} is not what the journal claims"));
            }
        }
        self.data.set_length(self.subject.size).unwrap();
        let mut fresh: Vec<Verified> = Vec::new();
        for _ in 0..self.random.below(20) {
            let block = u32::try_from(self.random.below(self.blocks as usize)).unwrap();
            match self.random.below(6) {
                0 => journal
                    .append(&self.data, &std::mem::take(&mut fresh))
                    .unwrap(),
                1 if verified.contains_key(&block) => {
                    // It is found to be stale.
                    let id = self.id();
                    journal.restart(id).unwrap();
                    verified.remove(&block);
                    fresh = verified
                        .iter()
                        .map(|(block, digest)| (*block, *digest))
                        .collect();
                    self.version += 1;
                    self.write(block, &mut fresh, &mut verified);
                }
                _ if verified.contains_key(&block) => {}
                _ => self.write(block, &mut fresh, &mut verified),
            }
        }
        if self.random.below(4) == 0 {
            self.subject.modified.nanos += 1;
            self.version += 1;
        }
        for disk in [&self.data, &self.log] {
            disk.lose_power(&mut self.random);
        }
        Ok(())
    }

    /// Has a block arrive, in pieces.
    fn write(
        &mut self,
        block: u32,
        fresh: &mut Vec<Verified>,
        verified: &mut BTreeMap<u32, Digest>,
    ) {
        let bytes = content(self.version, block);
        let at = u64::from(block) * BLOCK as u64;
        let cut = self.random.below(BLOCK);
        for (from, part) in [(0, &bytes[..cut]), (cut, &bytes[cut..])] {
            self.data.write_all_at(part, at + from as u64).unwrap();
        }
        let digest = *blake3::hash(&bytes).as_bytes();
        fresh.push((block, digest));
        verified.insert(block, digest);
    }
}

fn run(seed: u64, lies: Lies) -> Result<(), String> {
    let mut receiver = Receiver::new(seed, lies);
    (0..6).try_for_each(|_| receiver.session())
}

/// `HAUL_SIM_SEEDS` says how many seeds are tried.
#[test]
fn after_power_losses_a_journal_claims_only_what_is_there() {
    let seeds = std::env::var("HAUL_SIM_SEEDS").map_or(500, |seeds| seeds.parse().unwrap());
    for seed in 0..seeds {
        run(seed, Lies::Neither).unwrap_or_else(|found| panic!("seed {seed}: {found}"));
    }
}

#[test]
fn what_is_not_synced_in_its_order_is_found() {
    for lies in [Lies::Data, Lies::Log] {
        assert!((0..200).any(|seed| run(seed, lies).is_err()));
    }
}
