//! Formats numbers for people.

pub fn millis(micros: f64) -> String {
    format!("{:.2}", micros / 1e3)
}

pub fn times(ratio: f64) -> String {
    format!("{}×", significant(ratio))
}

pub fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Three significant digits, with at most three decimals.
pub fn significant(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        small if small < 1.0 => format!("{value:.3}"),
        small if small < 10.0 => format!("{value:.2}"),
        middle if middle < 100.0 => format!("{value:.1}"),
        _ => thousands(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(["0", "999", "1,000", "12,345,678"], [0.2, 999.0, 1e3, 12_345_678.0].map(thousands));
    }

    #[test]
    fn small_numbers_keep_their_digits_and_large_ones_lose_their_fraction() {
        let texts = [0.0, 0.0123, 4.567, 45.67, 1234.5].map(significant);
        assert_eq!(texts, ["0", "0.012", "4.57", "45.7", "1,234"]);
        assert_eq!(times(5.0), "5.00×");
    }
}
