//! Writes the stubs of the gateway. protox parses the protos, so protoc is not needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let protos = "../../protos";
    println!("cargo:rerun-if-changed={protos}/paceline/v1");
    let descriptors = protox::compile(["paceline/v1/gateway_service.proto"], [protos])?;
    tonic_prost_build::configure().build_server(false).bytes(".").compile_fds(descriptors)?;
    Ok(())
}
