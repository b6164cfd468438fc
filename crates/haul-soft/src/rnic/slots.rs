//! Numbered places for what a work request refers to, so that the core can name it by a number.

/// Values by number; numbers are small and used again. Grows with use, up to its limit.
#[derive(Debug)]
pub(super) struct Slots<T> {
    places: Vec<Place<T>>,
    /// The first of the free places, if there is one.
    free: Option<u32>,
    /// used <= places.len()
    used: usize,
    /// places.len() <= limit
    limit: u32,
}

#[derive(Debug)]
enum Place<T> {
    Used(T),
    /// And the next free one after it.
    Free(Option<u32>),
}

impl<T> Slots<T> {
    pub(super) fn new(limit: u32) -> Self {
        Self {
            places: Vec::new(),
            free: None,
            used: 0,
            limit,
        }
    }

    /// Keeps a value; gives it back where there are too many.
    pub(super) fn insert(&mut self, value: T) -> Result<u32, T> {
        if let Some(number) = self.free
            && let Some(place) = self.places.get_mut(number as usize)
            && let Place::Free(next) = *place
        {
            (self.free, *place) = (next, Place::Used(value));
            self.used += 1;
            return Ok(number);
        }
        match u32::try_from(self.places.len()) {
            Ok(number) if number < self.limit => {
                self.places.push(Place::Used(value));
                self.used += 1;
                Ok(number)
            }
            _ => Err(value),
        }
    }

    pub(super) fn get(&self, number: u32) -> Option<&T> {
        match self.places.get(number as usize)? {
            Place::Used(value) => Some(value),
            Place::Free(_) => None,
        }
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        match self.places.get_mut(number as usize)? {
            Place::Used(value) => Some(value),
            Place::Free(_) => None,
        }
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        let place = self.places.get_mut(number as usize)?;
        if matches!(place, Place::Free(_)) {
            return None;
        }
        let free = Place::Free(self.free.replace(number));
        self.used -= 1;
        match std::mem::replace(place, free) {
            Place::Used(value) => Some(value),
            Place::Free(_) => None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// Numbers in use, and some that are not.
    pub(super) fn numbers(&self) -> std::ops::Range<u32> {
        0..u32::try_from(self.places.len()).unwrap_or(u32::MAX)
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
