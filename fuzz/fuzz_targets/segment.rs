#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    straw::fuzzing::Decoder::Segment.check(bytes);
});
