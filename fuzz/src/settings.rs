//! Connection strings: parsed here and by the driver, and neither may print what the other considers a password.

use std::str::FromStr;
use std::time::Duration;

use queen_server::fuzzing::{bytes, milliseconds, part_password, place, seconds};

pub fn connection(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let shown = place(text);
    let parted = part_password(text);
    let Ok(driver) = tokio_postgres::Config::from_str(text) else { return };
    let Some(password) = driver.get_password().and_then(|bytes| std::str::from_utf8(bytes).ok()) else {
        return;
    };
    assert!(parted.password.is_some(), "{text:?}");
    // A short one occurs in other words by chance.
    let told = format!("{:?}{:?}{:?}", driver.get_user(), driver.get_dbname(), driver.get_hosts());
    if password.len() >= 5 && text.matches(password).count() == 1 && !told.contains(password) {
        assert!(!shown.contains(password), "{text:?} shows {shown:?}");
        assert!(!parted.text.contains(password), "{text:?} is shown as {:?}", parted.text);
    }
}

pub fn units(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(bytes) = bytes(&text) {
        assert!(bytes <= 1 << 40);
        assert!(text.trim().starts_with(|c: char| c.is_ascii_digit()));
    }
    if let (Ok(milliseconds), Ok(seconds)) = (milliseconds(&text), seconds(&text)) {
        let bare = text.trim().bytes().all(|byte| byte.is_ascii_digit());
        assert_eq!(milliseconds * if bare { 1_000 } else { 1 }, seconds, "{text:?}");
        assert!(seconds <= Duration::from_secs(86_400) * u32::MAX);
    }
}
