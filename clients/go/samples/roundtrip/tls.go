package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	caFile          = "PACELINE_SSL_CA_FILE"
	certificateFile = "PACELINE_SSL_CERTIFICATE_FILE"
	keyFile         = "PACELINE_SSL_KEY_FILE"
)

// transportCredentials returns TLS credentials with the files that the environment names, or plaintext if it names none.
// The client certificate is read again for every connection, so a renewed certificate is used without a restart.
func transportCredentials() (credentials.TransportCredentials, error) {
	ca, certificate, key := os.Getenv(caFile), os.Getenv(certificateFile), os.Getenv(keyFile)
	if ca == "" && certificate == "" && key == "" {
		return insecure.NewCredentials(), nil
	}
	if ca == "" || (certificate == "") != (key == "") {
		return nil, fmt.Errorf("TLS needs %s, and %s and %s together", caFile, certificateFile, keyFile)
	}
	pem, err := os.ReadFile(ca)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", caFile, err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, errors.New(caFile + ": " + ca + " has no certificate")
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	if certificate != "" {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(certificate, key)
			return &pair, err
		}
	}
	return credentials.NewTLS(config), nil
}
