#include "credentials.hpp"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>

namespace paceline {

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

std::string read_pem(const char* what, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::invalid_argument(std::string(what) + ": cannot read " + path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.find("-----BEGIN ") == std::string::npos)
    throw std::invalid_argument(std::string(what) + ": " + path + " is not a PEM file");
  return text;
}

}  // namespace

ClientConfig ClientConfig::from_environment() {
  ClientConfig config;
  std::istringstream addresses(variable("PACELINE_BOOTSTRAP_SERVERS"));
  for (std::string address; std::getline(addresses, address, ',');) {
    const auto begin = address.find_first_not_of(' ');
    if (begin != std::string::npos) config.bootstrap.push_back(address.substr(begin, address.find_last_not_of(' ') - begin + 1));
  }
  if (config.bootstrap.empty()) throw std::invalid_argument("PACELINE_BOOTSTRAP_SERVERS is not set: name at least one host:port");
  const TlsFiles files{variable("PACELINE_SSL_CA_FILE"), variable("PACELINE_SSL_CERTIFICATE_FILE"),
                       variable("PACELINE_SSL_KEY_FILE")};
  if (!files.ca_file.empty() || !files.certificate_file.empty() || !files.key_file.empty()) config.tls = files;
  return config;
}

namespace detail {

std::shared_ptr<grpc::ChannelCredentials> make_credentials(const std::optional<TlsFiles>& tls) {
  if (!tls) return grpc::InsecureChannelCredentials();
  if (tls->ca_file.empty() || tls->certificate_file.empty() != tls->key_file.empty())
    throw std::invalid_argument("TLS needs ca_file, and certificate_file and key_file together or not at all");
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = read_pem("ca_file", tls->ca_file);
  if (!tls->certificate_file.empty()) {
    options.pem_cert_chain = read_pem("certificate_file", tls->certificate_file);
    options.pem_private_key = read_pem("key_file", tls->key_file);
  }
  return grpc::SslCredentials(options);
}

}  // namespace detail

}  // namespace paceline
