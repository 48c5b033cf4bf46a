//! The arguments of a statement, for both ways to send one.
//!
//! *Prepared*, on a connection that leads to a server of its own: one round trip and no planning after the
//! first use. *As text*, through a pooler that gives each transaction another server: a statement that is
//! prepared on one server is unknown on the next, or is another client's there.

use std::fmt::Write as _;

use sqlx::Arguments as _;
use sqlx::postgres::PgArguments;

#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    /// NULL when there is none.
    Channel(Option<String>),
    Bytes(Vec<u8>),
    Integer(i64),
    Texts(Vec<String>),
    ByteStrings(Vec<Vec<u8>>),
    Integers(Vec<i64>),
}

pub(super) fn text(value: &str) -> Value {
    Value::Text(value.to_owned())
}

pub(super) fn bind(values: &[Value]) -> PgArguments {
    let mut arguments = PgArguments::default();
    for value in values {
        let added = match value.clone() {
            Value::Text(v) => arguments.add(v),
            Value::Channel(v) => arguments.add(v),
            Value::Bytes(v) => arguments.add(v),
            Value::Integer(v) => arguments.add(v),
            Value::Texts(v) => arguments.add(v),
            Value::ByteStrings(v) => arguments.add(v),
            Value::Integers(v) => arguments.add(v),
        };
        debug_assert!(
            added.is_ok(),
            "text, bytes and numbers are encoded by a copy"
        );
    }
    arguments
}

/// The statement with each `$n` replaced by the literal of its value.
pub(super) fn render(sql: &str, values: &[Value]) -> String {
    let mut out = String::with_capacity(sql.len() + 64 * values.len());
    let mut rest = sql;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let value = rest[..digits]
            .parse::<usize>()
            .ok()
            .and_then(|n| values.get(n.checked_sub(1)?));
        match value {
            Some(value) => literal(&mut out, value),
            // Ours have none such; a `$` of another kind stays as it is.
            None => {
                out.push('$');
                out.push_str(&rest[..digits]);
            }
        }
        rest = &rest[digits..];
    }
    out.push_str(rest);
    out
}

fn literal(out: &mut String, value: &Value) {
    match value {
        Value::Text(v) | Value::Channel(Some(v)) => quoted(out, v),
        Value::Channel(None) => out.push_str(" NULL"),
        Value::Bytes(v) => hex(out, v),
        Value::Integer(v) => number(out, *v),
        Value::Texts(v) => list(out, v, "text", |out, v| quoted(out, v)),
        Value::ByteStrings(v) => list(out, v, "bytea", |out, v| hex(out, v)),
        Value::Integers(v) => list(out, v, "bigint", |out, v| number(out, *v)),
    }
}

fn list<T>(out: &mut String, values: &[T], kind: &str, one: impl Fn(&mut String, &T)) {
    out.push_str("ARRAY[");
    for (n, value) in values.iter().enumerate() {
        if n > 0 {
            out.push(',');
        }
        one(out, value);
    }
    out.push_str("]::");
    out.push_str(kind);
    out.push_str("[]");
}

/// In parentheses, so that a cast after it takes the sign along.
fn number(out: &mut String, value: i64) {
    // Writing to a string cannot fail.
    let _ = write!(out, "({value})");
}

/// An escape string: read alike whatever `standard_conforming_strings` says.
fn quoted(out: &mut String, text: &str) {
    out.push_str(" E'");
    for c in text.chars() {
        match c {
            '\'' => out.push_str("''"),
            '\\' => out.push_str("\\\\"),
            c => out.push(c),
        }
    }
    out.push('\'');
}

fn hex(out: &mut String, bytes: &[u8]) {
    out.push_str(" decode('");
    for byte in bytes {
        let _ = write!(out, "{byte:02x}");
    }
    out.push_str("', 'hex')");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_cannot_be_broken_out_of() {
        let values = [
            text(r"a'; DROP TABLE x; --\' $2"),
            Value::Integer(-1),
            Value::Bytes(vec![0, 255]),
            Value::Texts(vec!["'".into(), "\\".into()]),
        ];
        assert_eq!(
            render("SELECT $1::text, $2::bigint, $3, $4, $10, $$", &values),
            r"SELECT  E'a''; DROP TABLE x; --\\'' $2'::text, (-1)::bigint,  decode('00ff', 'hex'), ARRAY[ E'''', E'\\']::text[], $10, $$"
        );
    }
}
