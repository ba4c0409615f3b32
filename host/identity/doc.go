// Package identity says who is who in a trust domain: it names identities, holds the
// certificate authority, and issues X.509-SVIDs for tokens and for SVIDs that run out.
//
// The pure parts are names ([ID]), the check of what a workload asks for
// ([ParseCSR]) and the certificate that it gets ([CA.Sign]). [Issuer] joins them with
// the store: tokens, the state of the authorities and the audit entry of every SVID
// are transactions, so that hosts of one store agree on them. Private keys of
// authorities are in files of the host's data directory and nowhere else.
//
// host/api serves it; host wires it and runs [Issuer.Run], which follows what other
// hosts do.
package identity
