//! Paths that sessions ask of the network.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use haul_xsp::wire::TEXT_MAX;
use serde::{Deserialize, Deserializer, Serialize, de};

/// Back ends that set up paths in the network: circuits, priorities, flows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum PathSignalling {
    /// None.
    #[default]
    None,
    /// A program that is run for each request; `docs/gateway-reference.md` specifies its input and
    /// output.
    Exec {
        /// The program and its arguments.
        program: Vec<String>,
        /// Timeout of a request, seconds.
        #[serde(default = "default_timeout")]
        timeout: u64,
    },
}

const fn default_timeout() -> u64 {
    60
}

/// A rule for a path, in the terms of the network: `type key=value …`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PathRule {
    /// The type.
    #[serde(rename = "type")]
    pub kind: String,
    /// The values by key.
    pub values: BTreeMap<String, String>,
}

/// Rejects a text that is not a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no rule of a path: type key=value …, each key once")]
pub struct NoPathRule(String);

impl FromStr for PathRule {
    type Err = NoPathRule;

    fn from_str(text: &str) -> Result<Self, NoPathRule> {
        let parse = || {
            let mut words = text.split_ascii_whitespace();
            let kind = words.next().filter(|word| is_name(word))?.to_owned();
            let mut values = BTreeMap::new();
            for word in words {
                let (key, value) = word.split_once('=').filter(|(key, _)| is_name(key))?;
                let is_new = values.insert(key.to_owned(), value.to_owned()).is_none();
                is_new.then_some(())?;
            }
            let is_plain = text.len() <= TEXT_MAX && !text.contains(|c: char| c.is_control());
            is_plain.then_some(Self { kind, values })
        };
        parse()
            .ok_or_else(|| NoPathRule(text.chars().filter(|c| !c.is_control()).take(80).collect()))
    }
}

fn is_name(word: &str) -> bool {
    let is_fine = |octet: u8| octet.is_ascii_alphanumeric() || matches!(octet, b'-' | b'_' | b'.');
    !word.is_empty() && word.bytes().all(is_fine)
}

impl fmt::Display for PathRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        let mut values = self.values.iter();
        values.try_for_each(|(key, value)| write!(f, " {key}={value}"))
    }
}

impl<'de> Deserialize<'de> for PathRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_have_a_type_and_values() {
        let rule: PathRule = "vlan  id=12 rate=1Gb/s note=".parse().unwrap();
        assert_eq!(rule.to_string(), "vlan id=12 note= rate=1Gb/s");
        assert_eq!(rule.values["rate"], "1Gb/s");
        let json = serde_json::to_string(&rule).unwrap();
        assert_eq!(
            json,
            r#"{"type":"vlan","values":{"id":"12","note":"","rate":"1Gb/s"}}"#
        );
        assert_eq!("best-effort".parse::<PathRule>().unwrap().values.len(), 0);
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for text in [
            "",
            " ",
            "a=b",
            "vlan id",
            "vlan =1",
            "vlan id=1 id=2",
            "vlan i\u{e9}=1",
            "vlan id=1\nfailed",
        ] {
            assert!(text.parse::<PathRule>().is_err(), "{text}");
        }
        let long = |len: usize| format!("a b={}", "x".repeat(len)).parse::<PathRule>();
        assert!(long(TEXT_MAX - 4).is_ok() && long(TEXT_MAX - 3).is_err());
    }
}
