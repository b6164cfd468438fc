//! How long a server waits for the streams of a client.

use std::time::{Duration, Instant};

use haul::fault::Fault;

use crate::control::Control;

/// How often it examines whether the client is still there.
const LOOK: Duration = Duration::from_millis(200);

/// A deadline that ends early with the client.
#[derive(Debug)]
pub(crate) struct Patience<'a> {
    control: &'a Control,
    deadline: Instant,
}

impl<'a> Patience<'a> {
    pub(crate) fn new(control: &'a Control, limit: Duration) -> Self {
        Self {
            control,
            deadline: Instant::now() + limit,
        }
    }

    /// Returns how long to wait before the next call; `None` after the deadline.
    ///
    /// # Errors
    /// The client has given up or is gone.
    pub(crate) fn left(&self) -> Result<Option<Duration>, Fault> {
        if let Some(fault) = self.control.peek_failure()? {
            return Err(fault);
        }
        let left = self.deadline.saturating_duration_since(Instant::now());
        Ok((!left.is_zero()).then(|| left.min(LOOK)))
    }
}

#[cfg(test)]
mod tests {
    use haul::fault::Code;

    use super::*;
    use crate::control;

    #[test]
    fn it_ends_with_the_client_or_at_its_deadline() {
        let (near, far) = control::pair(Duration::from_secs(60));
        assert_eq!(Patience::new(&far, Duration::ZERO).left(), Ok(None));
        let patience = Patience::new(&far, Duration::from_secs(3600));
        assert_eq!(patience.left(), Ok(Some(LOOK)));
        near.fail(&Fault::new(Code::DiskFull, "no room"));
        drop(near);
        let ended = std::iter::repeat_with(|| patience.left()).find_map(Result::err);
        assert_eq!(ended.map(|fault| fault.code), Some(Code::DiskFull));
    }
}
