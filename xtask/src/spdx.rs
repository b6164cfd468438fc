//! Licence expressions: `(MIT OR Apache-2.0) AND Unicode-3.0`.

/// Whether the terms of `expression` can be met with licences for which `allowed` says yes.
///
/// `A/B`, the old way to write `A OR B`, is understood. `A WITH B` is asked for as one name.
#[must_use]
pub fn is_satisfied(expression: &str, allowed: &dyn Fn(&str) -> bool) -> bool {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser {
        words: &words,
        allowed,
    };
    let satisfied = parser.either();
    satisfied == Some(true) && parser.words.is_empty()
}

/// Each method consumes what it understands; `None` is an expression that makes no sense.
struct Parser<'a> {
    words: &'a [&'a str],
    allowed: &'a dyn Fn(&str) -> bool,
}

impl<'a> Parser<'a> {
    fn either(&mut self) -> Option<bool> {
        let mut satisfied = self.both()?;
        while self.take("OR") {
            satisfied |= self.both()?;
        }
        Some(satisfied)
    }

    fn both(&mut self) -> Option<bool> {
        let mut satisfied = self.one()?;
        while self.take("AND") {
            satisfied &= self.one()?;
        }
        Some(satisfied)
    }

    fn one(&mut self) -> Option<bool> {
        if self.take("(") {
            let satisfied = self.either()?;
            return self.take(")").then_some(satisfied);
        }
        let licence = self.next()?;
        if self.take("WITH") {
            let exception = self.next()?;
            return Some((self.allowed)(&format!("{licence} WITH {exception}")));
        }
        Some((self.allowed)(licence))
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.words.first() == Some(&word);
        if found {
            self.words = &self.words[1..];
        }
        found
    }

    fn next(&mut self) -> Option<&'a str> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::is_satisfied;

    fn ours(licence: &str) -> bool {
        ["MIT", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"].contains(&licence)
    }

    #[test]
    fn one_allowed_choice_is_enough_and_every_condition_counts() {
        for expression in [
            "MIT",
            "GPL-3.0 OR MIT",
            "GPL-3.0/MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
        ] {
            assert!(is_satisfied(expression, &ours), "{expression}");
        }
        for expression in [
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "Apache-2.0 WITH Bison-exception-2.2",
        ] {
            assert!(!is_satisfied(expression, &ours), "{expression}");
        }
    }

    #[test]
    fn nonsense_is_not_a_licence() {
        for expression in ["", "MIT OR", "(MIT", "MIT MIT", ")"] {
            assert!(!is_satisfied(expression, &ours), "{expression}");
        }
    }
}
