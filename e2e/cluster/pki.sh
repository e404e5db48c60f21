# Certificates and kubeconfigs, in the folder $pki. Sourced by cluster.sh and apiserver-only.sh.

pki_key() { openssl ecparam -genkey -name prime256v1 -noout -out "$pki/$1.key"; }

# A new authority, and the key pair that signs ServiceAccounts' tokens.
pki_authority() {
  (umask 077; mkdir -p "$pki")
  pki_key ca
  openssl req -x509 -new -key "$pki/ca.key" -sha256 -days 365 -subj /CN=thresh-e2e -out "$pki/ca.crt" 2> /dev/null
  pki_key sa
  openssl ec -in "$pki/sa.key" -pubout -out "$pki/sa.pub" 2> /dev/null
}

pki_certificate() { # NAME SUBJECT serverAuth|clientAuth [ALTERNATIVE-NAMES]
  pki_key "$1"
  openssl req -new -key "$pki/$1.key" -subj "$2" 2> /dev/null | openssl x509 -req -CA "$pki/ca.crt" -CAkey "$pki/ca.key" -days 365 -sha256 \
    -set_serial "0x$(openssl rand -hex 16)" -out "$pki/$1.crt" 2> /dev/null -extfile <(
      echo "keyUsage=critical,digitalSignature,keyEncipherment"
      echo "extendedKeyUsage=$3"
      [ -z "${4:-}" ] || echo "subjectAltName=$4")
}

pki_apiserver() {
  local names=DNS:localhost,IP:127.0.0.1,IP:10.96.0.1,IP:10.77.0.1 name
  for name in kubernetes{,.default,.default.svc,.default.svc.cluster.local}; do names+=,DNS:$name; done
  pki_certificate apiserver /CN=kube-apiserver serverAuth "$names"
}

# A kubeconfig that holds its keys itself, so that it may be copied anywhere.
pki_kubeconfig() { # IDENTITY SERVER FILE
  embed() { base64 -w0 < "$pki/$1"; }
  (umask 077; cat > "$3") << END
apiVersion: v1
kind: Config
clusters: [{name: e2e, cluster: {server: "$2", certificate-authority-data: $(embed ca.crt)}}]
users: [{name: $1, user: {client-certificate-data: $(embed "$1.crt"), client-key-data: $(embed "$1.key")}}]
contexts: [{name: e2e, context: {cluster: e2e, user: $1}}]
current-context: e2e
END
}
