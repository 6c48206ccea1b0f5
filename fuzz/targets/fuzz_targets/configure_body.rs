#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| queen_fuzz::check("configure_body", data));
