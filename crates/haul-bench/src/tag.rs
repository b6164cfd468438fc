//! The fields encoded in a work request's identifier.

/// Whose completion it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A message that is measured.
    Data,
    /// A read behind the last message: when it is complete, all before it is placed.
    Flush,
    /// A message about room at the receiver.
    Credit,
    /// A receive.
    Recv,
}

/// Kind, queue pair, and a number: of messages that a completion stands for, or of a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tag(u64);

const NUMBER_BITS: u32 = 40;
const QP_BITS: u32 = 20;

impl Tag {
    pub(crate) fn new(kind: Kind, qp: u64, number: u64) -> Self {
        let kind = kind as u64;
        let number = number & ((1 << NUMBER_BITS) - 1);
        Self(kind << (NUMBER_BITS + QP_BITS) | qp << NUMBER_BITS | number)
    }

    pub(crate) fn kind(self) -> Kind {
        match self.0 >> (NUMBER_BITS + QP_BITS) {
            0 => Kind::Data,
            1 => Kind::Flush,
            2 => Kind::Credit,
            _ => Kind::Recv,
        }
    }

    pub(crate) fn qp(self) -> u64 {
        self.0 >> NUMBER_BITS & ((1 << QP_BITS) - 1)
    }

    pub(crate) fn number(self) -> u64 {
        self.0 & ((1 << NUMBER_BITS) - 1)
    }
}

impl From<Tag> for u64 {
    fn from(tag: Tag) -> Self {
        tag.0
    }
}

impl From<u64> for Tag {
    fn from(wr_id: u64) -> Self {
        Self(wr_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_comes_back_as_it_went() {
        for kind in [Kind::Data, Kind::Flush, Kind::Credit, Kind::Recv] {
            for (qp, number) in [(0, 0), (16_383, 5), (1, (1 << NUMBER_BITS) - 1)] {
                let tag = Tag::from(u64::from(Tag::new(kind, qp, number)));
                assert_eq!((tag.kind(), tag.qp(), tag.number()), (kind, qp, number));
            }
        }
    }
}
