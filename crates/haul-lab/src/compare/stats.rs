//! Medians and fairness.

/// The value in the middle, or the mean of the two in the middle. `None` without values.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        len if len % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

/// Jain's index of fairness: 1 when all are equal, `1/n` when one has all (Jain, Chiu and Hawe, DEC-TR-301, 1984).
/// `None` where nobody has anything.
pub(super) fn jain(shares: &[f64]) -> Option<f64> {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    #[expect(clippy::cast_precision_loss, reason = "a few flows")]
    let count = shares.len() as f64;
    (squares > 0.0).then(|| sum * sum / (count * squares))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0]), Some(3.0));
        assert_eq!(median(vec![9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }

    #[test]
    fn jains_index_is_one_when_all_are_equal_and_one_nth_when_one_has_all() {
        assert_eq!(jain(&[5.0, 5.0]), Some(1.0));
        assert_eq!(jain(&[5.0, 0.0]), Some(0.5));
        assert_eq!(jain(&[0.0, 0.0]), None);
        let index = jain(&[7.0, 3.0]).unwrap();
        assert!((index - 100.0 / 116.0).abs() < 1e-12);
    }
}
