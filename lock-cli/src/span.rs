//! Spans of time as people write them: `10s`, `250ms`, `1m30s`, `1.5h`.

use std::time::Duration;

const UNITS: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];

/// Reads a span. A number without a unit is refused: it would be a guess.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err("it is empty; say for example 10s or 250ms".into());
    }
    if rest.starts_with('-') {
        return Err("it is negative; say for example 10s or 250ms".into());
    }
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let letters = tail
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let value: f64 = number
            .parse()
            .map_err(|_| "it is not a span of time; say for example 10s or 250ms".to_owned())?;
        if unit.is_empty() {
            return Err(format!("it has no unit; say {number}s or {number}ms"));
        }
        let Some((_, millis)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(format!(
                "{unit:?} is not a unit; the units are ms, s, m, h and d"
            ));
        };
        #[allow(clippy::cast_precision_loss, reason = "the factors are small")]
        let part = Duration::try_from_secs_f64(value * (*millis as f64) / 1000.0)
            .map_err(|_| "it is too long".to_owned())?;
        sum = sum.checked_add(part).ok_or("it is too long")?;
        rest = tail;
    }
    Ok(sum)
}

/// A span for people: `1.3 s`, `250 ms`, `2 m 5 s`.
pub(crate) fn show(span: Duration) -> String {
    let millis = span.as_millis();
    if millis < 1000 {
        return format!("{millis} ms");
    }
    if millis < 60_000 {
        return format!("{:.1} s", span.as_secs_f64());
    }
    let seconds = span.as_secs();
    if seconds < 3600 {
        return format!("{} m {} s", seconds / 60, seconds % 60);
    }
    format!("{} h {} m", seconds / 3600, seconds / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_need_a_unit() {
        let ms = |n| Ok(Duration::from_millis(n));
        assert_eq!(parse("10s"), ms(10_000));
        assert_eq!(parse("250ms"), ms(250));
        assert_eq!(parse("1m30s"), ms(90_000));
        assert_eq!(parse("1.5h"), ms(5_400_000));
        assert_eq!(parse("0s"), ms(0));
        assert_eq!(parse("10").unwrap_err(), "it has no unit; say 10s or 10ms");
        for bad in [
            "",
            "s",
            "-5s",
            "10 parsecs",
            "1e3s",
            "ten",
            "99999999999999999999d",
            "1.2.3s",
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn spans_are_shown_in_two_figures() {
        assert_eq!(show(Duration::from_millis(37)), "37 ms");
        assert_eq!(show(Duration::from_millis(4_250)), "4.2 s");
        assert_eq!(show(Duration::from_secs(125)), "2 m 5 s");
        assert_eq!(show(Duration::from_secs(7_320)), "2 h 2 m");
    }
}
