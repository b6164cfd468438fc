//! Numbered places for what a work request refers to, so that the core can name it by a number.

/// Values by number; numbers are small and used again. Grows with use, up to its limit.
#[derive(Debug)]
pub(super) struct Slots<T> {
    values: Vec<Option<T>>,
    free: Vec<u32>,
    /// values.len() <= limit
    limit: u32,
}

impl<T> Slots<T> {
    pub(super) fn new(limit: u32) -> Self {
        Self {
            values: Vec::new(),
            free: Vec::new(),
            limit,
        }
    }

    /// Keeps a value; gives it back where there are too many.
    pub(super) fn insert(&mut self, value: T) -> Result<u32, T> {
        if let Some(number) = self.free.pop() {
            self.values[number as usize] = Some(value);
            return Ok(number);
        }
        match u32::try_from(self.values.len()) {
            Ok(number) if number < self.limit => {
                self.values.push(Some(value));
                Ok(number)
            }
            _ => Err(value),
        }
    }

    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.values.get(number as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.values.get_mut(number as usize)?.as_mut()
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        let value = self.values.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(value)
    }

    pub(super) fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }

    /// Numbers in use, and some that are not.
    pub(super) fn numbers(&self) -> std::ops::Range<u32> {
        0..u32::try_from(self.values.len()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_names_one_value_until_it_is_removed() {
        let mut slots = Slots::new(2);
        let (a, b) = (slots.insert('a').unwrap(), slots.insert('b').unwrap());
        assert_eq!(slots.insert('c'), Err('c'));
        assert_eq!((slots.remove(a), slots.remove(a)), (Some('a'), None));
        assert_eq!(slots.insert('d'), Ok(a));
        assert_eq!(
            (slots.get(a), slots.get(b), slots.get(9)),
            (Some(&'d'), Some(&'b'), None)
        );
        assert_eq!(slots.len(), 2);
    }
}
