//! As much of JSON Schema as docs/schema uses. An unknown keyword is a failure, so that none is
//! passed over.

use serde_json::Value;

pub(crate) struct Schema(Value);

impl Schema {
    pub(crate) fn load(name: &str) -> Self {
        let path = format!("{}/../../docs/schema/{name}", env!("CARGO_MANIFEST_DIR"));
        Self(serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap())
    }

    pub(crate) fn check(&self, value: &Value) {
        self.must(&self.0, value);
    }

    pub(crate) fn check_definition(&self, name: &str, value: &Value) {
        self.must(&self.0["$defs"][name], value);
    }

    fn must(&self, schema: &Value, value: &Value) {
        if let Err(why) = self.matches(schema, value) {
            panic!("{why}\nin {value:#}");
        }
    }

    fn matches(&self, schema: &Value, value: &Value) -> Result<(), String> {
        for (keyword, rule) in schema.as_object().expect("a schema is an object") {
            self.keyword(keyword, rule, schema, value)?;
        }
        Ok(())
    }

    fn keyword(
        &self,
        keyword: &str,
        rule: &Value,
        schema: &Value,
        value: &Value,
    ) -> Result<(), String> {
        let holds = match keyword {
            "$schema" | "$defs" | "title" | "description" => true,
            "$ref" => {
                let pointer = rule
                    .as_str()
                    .and_then(|rule| rule.strip_prefix('#'))
                    .unwrap();
                return self.matches(self.0.pointer(pointer).unwrap(), value);
            }
            "oneOf" => {
                let results: Vec<_> = rule
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|schema| self.matches(schema, value))
                    .collect();
                return match results.iter().filter(|result| result.is_ok()).count() {
                    1 => Ok(()),
                    n => Err(format!("{n} of the alternatives match: {results:?}")),
                };
            }
            "const" => value == rule,
            "enum" => rule.as_array().unwrap().contains(value),
            "type" => match rule {
                Value::Array(types) => types.iter().any(|rule| has_type(rule, value)),
                rule => has_type(rule, value),
            },
            "minimum" => value
                .as_f64()
                .is_none_or(|number| number >= rule.as_f64().unwrap()),
            "pattern" => {
                assert_eq!(rule, "^[0-9a-f]{64}$", "the only pattern known here");
                value.as_str().is_none_or(|text| {
                    text.len() == 64 && text.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'))
                })
            }
            "required" => {
                let missing = rule
                    .as_array()
                    .unwrap()
                    .iter()
                    .find(|name| value.get(name.as_str().unwrap()).is_none());
                return missing.map_or(Ok(()), |name| Err(format!("{name} is missing")));
            }
            "properties" => {
                for (name, schema) in rule.as_object().unwrap() {
                    if let Some(value) = value.get(name) {
                        self.matches(schema, value)
                            .map_err(|why| format!("{name}: {why}"))?;
                    }
                }
                true
            }
            "items" => {
                for item in value.as_array().into_iter().flatten() {
                    self.matches(rule, item)?;
                }
                true
            }
            other => panic!("the schema uses '{other}', which is not known here: {schema}"),
        };
        if holds {
            Ok(())
        } else {
            Err(format!("{value} breaks {keyword} {rule}"))
        }
    }
}

fn has_type(rule: &Value, value: &Value) -> bool {
    match rule.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        other => panic!("unknown type {other}"),
    }
}
