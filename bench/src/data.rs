//! Data files of the bench: TOML, parsed into types.

use serde::de::DeserializeOwned;
use serde_json::Value;
use toml::de::{DeTable, DeValue};

/// Parses `text`. Returns an error if it is not TOML, or has no value of `T`.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let table = DeTable::parse(text).map_err(|error| error.to_string())?;
    serde_json::from_value(object(table.get_ref())?).map_err(|error| error.to_string())
}

fn object(table: &DeTable<'_>) -> Result<Value, String> {
    let members = table.iter().map(|(name, member)| {
        let member = value(member.get_ref()).map_err(|why| format!("{}: {why}", name.get_ref()))?;
        Ok((name.get_ref().to_string(), member))
    });
    members.collect::<Result<_, String>>().map(Value::Object)
}

fn value(from: &DeValue<'_>) -> Result<Value, String> {
    Ok(match from {
        DeValue::String(text) => Value::from(text.as_ref()),
        DeValue::Boolean(is) => Value::from(*is),
        DeValue::Integer(number) => {
            let parsed = i64::from_str_radix(number.as_str(), number.radix());
            Value::from(parsed.map_err(|error| error.to_string())?)
        }
        DeValue::Float(number) => {
            let parsed = number.as_str().parse::<f64>();
            Value::from(parsed.map_err(|error| error.to_string())?)
        }
        DeValue::Array(items) => {
            let items = items.iter().map(|item| value(item.get_ref()));
            Value::Array(items.collect::<Result<_, String>>()?)
        }
        DeValue::Table(table) => object(table)?,
        DeValue::Datetime(time) => return Err(format!("expected no time, got {time}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_parsed_into_types() {
        #[derive(Debug, PartialEq, serde::Deserialize)]
        struct Data {
            name: String,
            all: Vec<(u8, f64)>,
        }
        let data = parse("name = 'a'\nall = [[1, 2.5], [0x10, 3]]");
        let expected = Data {
            name: "a".into(),
            all: vec![(1, 2.5), (16, 3.0)],
        };
        assert_eq!(data, Ok(expected));
        assert!(parse::<Data>("name = 'a'\nall = 1979-05-27").is_err());
        assert!(parse::<Data>("name = ").is_err());
    }
}
