//! A release that is not static would be an init without a loader: say so here and not in a guest that does not boot.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let features = std::env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    let is_static = features.split(',').any(|feature| feature == "crt-static");
    assert!(
        is_static || std::env::var("PROFILE").is_ok_and(|profile| profile != "release"),
        "the daemon must be linked statically, and guest/.cargo/config.toml was not read (run cargo with guest/ as its working directory)"
    );
}
