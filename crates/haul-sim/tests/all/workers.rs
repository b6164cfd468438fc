//! Work on all processors.

use std::sync::Mutex;

/// Calls `work` with each item, on all processors; returns the results in any order.
pub(crate) fn on_all_processors<T: Send, R: Send>(
    items: impl Iterator<Item = T> + Send,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let (items, results) = (Mutex::new(items), Mutex::new(Vec::new()));
    let worker = || {
        loop {
            // A `while let` would hold the lock during the work.
            let Some(item) = items.lock().expect("no worker panics").next() else {
                return;
            };
            let result = work(item);
            results.lock().expect("no worker panics").push(result);
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(worker))));
    results.into_inner().expect("no worker panics")
}
