// Each minor has a go.mod of its own: go build -modfile=1.36/go.mod
module koordebpf.test/kubernetes

go 1.25.0
