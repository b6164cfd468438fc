use crate::schema::Schema;
use crate::support::haul;

#[test]
fn devices_keep_to_their_schema() {
    Schema::load("devices-v1.json").check(&haul(["devices", "--json"]).ok().json());
}

#[test]
fn the_software_provider_is_always_there_and_the_other_says_why_not() {
    let list = haul(["devices", "--json"]).ok().json();
    let provider = |name: &str| {
        let providers = list["providers"].as_array().unwrap();
        let mut named = providers.iter().filter(|found| found["provider"] == name);
        named.next().unwrap().clone()
    };
    let soft = provider("soft");
    let names: Vec<_> = soft["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|device| device["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["soft-tcp", "soft-udt", "soft-udp"]);
    let ibv = provider("ibv");
    let devices = ibv["devices"].as_array().unwrap();
    assert_eq!(devices.is_empty(), ibv["reason"].is_string(), "{ibv}");
    let text = haul(["devices"]).ok().stdout;
    assert!(text.contains("soft   soft-tcp: iWARP; "), "{text}");
    assert!(text.contains("\nibv    "), "{text}");
}
