//! Objects as they are sent.

use serde_json::Value;

/// Leaves out what is null, at any depth, as a person's manifest would: to apply a null is to own a field's absence.
pub fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(without_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_null_is_left_out_at_any_depth_and_what_is_empty_stays() {
        let mut value = json!({"a": null, "b": [{"c": null, "d": 0}], "e": {}, "f": {"g": null}});
        without_nulls(&mut value);
        assert_eq!(value, json!({"b": [{"d": 0}], "e": {}, "f": {}}));
    }
}
